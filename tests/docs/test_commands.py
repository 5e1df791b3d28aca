"""Every command that README and documentation print is understood: options and keys exist, files are there.

What a launch does is seen by the examples tier, which starts each file of examples/ for real; a page whose commands
build on each other has a test of its own (`WALKED`).
"""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from agentevolver.config.checks import load
from agentevolver.launcher.options import parse
from agentevolver.utils.recipes import recipes
from tests.constants import ENDPOINT

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / ".github").glob("*.md")))
# Folders and files that a reader makes by following the page; the test that does so.
WALKED = {
    "my_world": "tests/docs/test_bring_your_own.py",
    "last_word": "tests/docs/test_bring_your_own.py",
    "garden": "tests/docs/test_bring_your_own.py",
    "my_agent.yaml": "tests/docs/test_train_your_agent.py",
    "my_tasks.yaml": "tests/agentevolver/rollout/test_agent_container.py",
    "questioning.yaml": "tests/task_manager/test_configuration.py",
}
# What is no program of ours, and no business of this test beyond its syntax.
ELSEWHERE = {"nft", "export", "source", "mkdir", "cp", "set", "pip", ".venv/bin/pre-commit"}
# What loops and functions of the pages put in, for one of their turns.
ARGUMENTS = {
    "$seed": "1",
    "$conf": "basic",
    "$PWD": "/somewhere",
    "$1": "first",
    "$2": "basic",
    "$3": "1",
    "${@:4}": "",
}
SHELL_WORDS = {"for", "do", "done", "}", "{", "&&"}


def blocks() -> list[tuple[str, str]]:
    """The shell blocks of all pages, each with its page's name."""
    return [
        (page.name, re.sub(r"^ +(?=\S)", "", text, flags=re.MULTILINE))
        for page in PAGES
        for text in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]


def commands() -> list[tuple[str, tuple[str, ...]]]:
    """The simple commands of all blocks as words, each with its page; variables of a block that are set to a plain
    text are put in."""
    found = []
    for page, text in blocks():
        text = text.replace("\\\n", " ")
        known = dict(re.findall(r"^(\w+)=\"?([^\"\n]*?)\"?$", text, re.MULTILINE))
        for name in sorted(known, key=len, reverse=True):
            text = text.replace(f"${name}", known[name])
        for name, value in ARGUMENTS.items():
            text = text.replace(name, value)
        for line in text.splitlines():
            words = [word for word in shlex.split(line, comments=True) if word]
            while words and words[0] in SHELL_WORDS:
                words = [] if words[0] == "for" else words[1:]
            if words and not re.fullmatch(r"\w+(\(\)|=.*)", words[0]):
                found.append((page, tuple(words)))
    return found


COMMANDS = commands()


def named(condition) -> list:
    chosen = dict.fromkeys((page, words) for page, words in COMMANDS if condition(words))
    return [pytest.param(page, words, id=f"{page}-{' '.join(words)[:60]}") for page, words in chosen]


def is_launch(words: tuple[str, ...]) -> bool:
    return words[:2] == ("python", "launcher.py") or words[:2] == ("agentevolver", "run")


def is_module(words: tuple[str, ...]) -> bool:
    return words[:2] == ("python", "-m") or words[0] == "agentevolver" or (len(words) > 1 and "benchmarks/" in words[1])


def made_by_the_reader(word: str) -> bool:
    return any(word == name or word.startswith(f"{name}/") for name in WALKED)


def test_every_block_parses() -> None:
    for page, text in blocks():
        outcome = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert outcome.returncode == 0, f"{page}: {outcome.stderr}\n{text}"


def test_every_command_is_one_that_a_test_knows() -> None:
    unknown = [
        f"{page}: {' '.join(words)}"
        for page, words in COMMANDS
        if not (is_launch(words) or is_module(words) or words[0] in ELSEWHERE or words[0] in ("bash", "same"))
    ]
    assert not unknown, "a command that nothing checks; python is called as `python` once the environment is active"


@pytest.mark.parametrize(("page", "words"), named(is_launch))
def test_a_launch_has_options_and_keys_that_exist(
    page: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    options = parse(words[2:])
    if options.conf is None:
        assert any(word.startswith("--") for word in words), "a launch without an experiment asks for something else"
        return
    if not made_by_the_reader(str(options.conf)):
        if not recipes() and any(key in word for word in words for key in ("llm.teacher.", "recipes.")):
            pytest.skip("the keys of a recipe, and no recipe is in this checkout")
        settings = load(ROOT / options.conf, ["device=cpu", *ENDPOINT, *options.overrides]).settings
        assert settings.experiment_dir


@cache
def help_of(program: tuple[str, ...]) -> str:
    outcome = subprocess.run([*program, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


@pytest.mark.service
@pytest.mark.parametrize(("page", "words"), named(lambda words: is_module(words) and not is_launch(words)))
def test_a_program_has_the_options_that_are_printed(page: str, words: tuple[str, ...]) -> None:
    if words[:3] in (("python", "-m", "pytest"), ("python", "-m", "verl.model_merger")):
        return
    if words[1:2] == ("-m",) and words[2].partition(".")[0] in WALKED:
        return
    program = {"python": sys.executable, "agentevolver": str(Path(sys.executable).parent / "agentevolver")}[words[0]]
    head = (program, *(words[1:3] if words[1:2] == ("-m",) else words[1:2] if words[0] == "python" else ()))
    rest = words[len(head) :]
    # A verb stands at the beginning of a line of the program's help.
    if rest and not rest[0].startswith("-") and re.search(rf"^ +{re.escape(rest[0])}\b", help_of(head), re.MULTILINE):
        head, rest = (*head, rest[0]), rest[1:]
    else:
        assert words[0] != "agentevolver" or not rest or rest[0].startswith("-"), f"{rest[0]} is no verb"
    told = help_of(head)
    unknown = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in told]
    assert not unknown, f"{page}: {' '.join(head[1:])} knows no {', '.join(unknown)}"


@pytest.mark.parametrize(("page", "words"), named(lambda words: words[0] == "bash"))
def test_a_script_is_there_and_takes_its_argument(page: str, words: tuple[str, ...]) -> None:
    script = ROOT / words[1]
    if words[1].startswith("agentevolver/recipes/") and not recipes():
        pytest.skip("a script of a recipe, and no recipe is in this checkout")
    assert script.is_file(), page
    text = script.read_text(encoding="utf-8")
    for word in words[2:]:
        if script.name == "run.sh" and not word.startswith("-") and "-k" not in words[: words.index(word)]:
            assert re.search(rf"\b{word}\b[^)\n]*\)", text), f"{word} is no part of {words[1]}"
        if script.name == "install.sh":
            assert word in text
