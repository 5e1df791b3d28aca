"""What lies in examples/: every experiment can be planned on both devices, every script and manifest parses and names
what exists."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentevolver.cli.commands.task_manager import main as task_manager
from agentevolver.config.checks import load
from agentevolver.config.layers import read_overrides
from agentevolver.config.load import compose_defaults, merge, refuse_unknown
from agentevolver.config.manager_settings import from_experiment
from agentevolver.evaluation.tables import TablePlan, read_table
from agentevolver.launcher import cli
from agentevolver.launcher.options import parse
from agentevolver.llm.settings import Role, stand_in
from agentevolver.utils.errors import UsageError
from agentevolver.utils.recipes import recipes
from env_service.cli import main as env_service
from env_service.registry import known_environments
from task_manager.actions import format_of
from task_manager.profile import profile_for
from tests.constants import ENDPOINT
from tests.examples.headers import commands as header_commands
from tests.free_ports import free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FOLDERS = (EXAMPLES, *sorted((ROOT / "agentevolver" / "recipes").glob("*/examples")))
FILES = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted(folder.iterdir())]
CONFS = [str(path) for path in FILES if path.suffix == ".yaml"]
SCRIPTS = [str(path) for path in FILES if path.suffix == ".sh"]
DOCUMENT = (EXAMPLES / "multi_node.md").read_text()

# What a dry run says of an environment whose package or data is not on this machine: the one obstacle that may be.
NOT_INSTALLED = {
    "appworld": ("AppWorld is not installed: ", "AppWorld's data is missing: "),
    "bfcl": ("the bfcl environment could not import `",),
    "catalogue": ("there is no tool catalogue in ",),
    "gymnasium": ("the gymnasium environment could not import `",),
    "reasoning_gym": ("reasoning-gym is not installed: ",),
    "scienceworld": ("scienceworld needs a Java runtime", "the scienceworld environment could not import its package"),
    "tau2": ("the tau2 environment could not import `",),
    "textarena": ("the textarena environment could not import `",),
    "textworld": ("the textworld environment could not import `",),
}


def main_job(conf: Path) -> str:
    rounds = "agent0" in yaml.safe_load(conf.read_text()).get("recipes", {})
    return "agentevolver.recipes.agent0" if rounds else "agentevolver.trainer.job.main"


def skip_without_recipes(*texts: str) -> None:
    """Skip what names a recipe in a checkout that has none."""
    if not recipes() and re.search(r"\brecipes\b|\bseed_policy\b|\bllm\.teacher\.", " ".join(texts)):
        pytest.skip("it names a recipe, and no recipe is in this checkout")


def header_calls(beginning: str) -> list[Any]:
    """The commands of all headers that begin so, each with its file's name; variables before it do not count."""
    found = [(name, words) for name in (*CONFS, *SCRIPTS) for words in header_commands(ROOT / name)]
    chosen = [
        (name, words)
        for name, words in found
        if re.sub(r"^(?:[A-Z]+=.*? )*(?=python|bash)", "", " ".join(words)).startswith(beginning)
    ]
    return [pytest.param(name, words, id=f"{name}-{index}") for index, (name, words) in enumerate(chosen)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """The arguments of every call of a program in the document's shell blocks; shell variables stand for a plain
    word."""
    text = "\n".join(blocks("bash")).replace("\\\n", " ")
    text = re.sub(r"\"?\$\{?SLURM_JOB_NUM_NODES\}?\"?", "2", text)
    text = re.sub(r"\"?([\w=.:/]*)\$address([\w:./]*)\"?", r"\g<1>HEAD\g<2>", text)
    calls = [line.partition(program)[2] for line in text.splitlines() if program in line]
    return [re.split(r"\s(?:&|>|--dry-run)", call)[0].rstrip(' &"').split() for call in calls]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "words"), header_calls("python launcher.py"))
def test_every_launch_that_a_header_prints_can_be_planned(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    skip_without_recipes((ROOT / name).read_text(), *words)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        "agentevolver.launcher.preflight.check_model", lambda config: []
    )  # a folder of the reader's own is not here
    assert (
        cli.main(
            [
                *ENDPOINT,
                *words[2:],
                "--show-config",
                "device=cuda",
                f"experiment.root={tmp_path}",
                "ray.dashboard=false",
            ],
            tmp_path,
        )
        == 0
    )
    printed = capsys.readouterr().out
    config = yaml.safe_load(printed.partition("# the resolved configuration\n")[2])
    data, known = config["data"], splits_of(config["env_service"]["env_type"])
    if not Path(name).stem.startswith("overall"):  # whose splits have names that every environment understands
        assert {data["train_split"], *data["val_splits"]} <= known, "the splits are those of the environment"
    assert f"-m {main_job(ROOT / name)} --config" in printed and "sk-of-nobody" not in printed


@pytest.mark.thorough
@pytest.mark.parametrize("env_type", sorted(known_environments()))
def test_the_whole_loop_can_be_planned_on_every_environment(
    env_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    overall = [f"env_service.env_type={env_type}", f"experiment.root={tmp_path}", "ray.dashboard=false", "device=cpu"]
    overall += [f"env_service.env_url=http://127.0.0.1:{free_port()}"]  # whatever else is served on this machine
    # The benchmark's own splits: what is not trained on is tested on.
    overall += ["data.val_splits=[test]"] if env_type == "tau2" else []
    arguments = ["--conf", str(EXAMPLES / "overall.yaml"), "--show-config", *overall]
    assert cli.main([*arguments, "llm.base_url=http://127.0.0.1:9/v1", "llm.model=some-model"], tmp_path) == 0
    printed = capsys.readouterr().out
    config = yaml.safe_load(printed.partition("# the resolved configuration\n")[2])
    assert config["env_service"]["env_type"] == config["trainer"]["project_name"] == env_type
    obstacles = [line for line in printed.splitlines() if "a start would fail" in line]
    assert all(any(text in line for text in NOT_INSTALLED.get(env_type, ())) for line in obstacles), obstacles
    configuration = from_experiment(
        EXAMPLES / "overall.yaml", [*overall, "llm.base_url=http://127.0.0.1:9/v1", "llm.model=some-model"]
    )
    assert profile_for(env_type, configuration.task_manager.env_profile).entities
    assert format_of(env_type, configuration.task_manager.action_format).executable
    if stand_in().problem(Role.EXPLORER, [env_type], "episodes") is not None:
        assert cli.main(arguments, tmp_path) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "llm.base_url = offline: " in line and "name an endpoint for the role" in line


def splits_of(env_type: str) -> set[str]:
    if env_type == "bfcl":
        return {"train", "val", "test"}
    return (
        {"train", "dev", "test_normal", "test_challenge"}
        if env_type == "appworld"
        else {"train", "dev", "test", "hard"}
    )


@pytest.mark.parametrize(("name", "words"), header_calls("python -m task_manager"))
def test_every_command_of_the_task_manager_that_a_header_prints_can_be_carried_out(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        "task_manager.services.running", lambda configuration, **kwargs: pytest.fail("nothing is started")
    )
    monkeypatch.setattr(
        "agentevolver.cli.commands.task_manager._run",
        lambda options: asked.append((options.command, options.with_services)) or 0,
    )
    assert task_manager(words[3:]) == 0 and asked
    from_experiment(Path(words[words.index("--conf") + 1]), ["device=cpu", *ENDPOINT])


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_parses_and_starts_an_experiment_that_exists(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
    assert set(re.findall(r"(?:agentevolver/recipes/\w+/)?examples/[\w.]+\.yaml", (ROOT / script).read_text())) <= set(
        CONFS
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(path.name for path in (EXAMPLES / "tables").glob("*.yaml")))
def test_every_training_of_a_table_is_one_that_can_be_started(name: str) -> None:
    skip_without_recipes((EXAMPLES / "tables" / name).read_text())
    plan = TablePlan(read_table(EXAMPLES / "tables" / name), EXAMPLES / "tables")
    first = {cell.condition: cell for cell in reversed(plan.cells())}
    launches = [launch for cell in first.values() if (launch := plan.training(cell)) is not None]
    assert launches
    for launch in launches:
        load(launch.conf, ["device=cpu", *ENDPOINT, *launch.overrides])


def test_every_option_and_key_of_the_launcher_exists() -> None:
    calls = commands("launcher.py")
    assert calls
    config = compose_defaults("cuda")
    for call in calls:
        options = parse(call)
        assert options.conf is not None and (ROOT / options.conf).exists()
        overrides = read_overrides(list(options.overrides))
        refuse_unknown(overrides, config, "multi_node.md")
        merge(config, overrides, "multi_node.md")
        assert config.trainer.nnodes == 2
    with pytest.raises(UsageError):
        parse([*calls[0], "--no-such-option"])


def test_every_option_of_the_environment_service_exists(capsys: pytest.CaptureFixture[str]) -> None:
    calls = commands("-m env_service")
    assert calls
    for call in calls:
        with pytest.raises(SystemExit) as ended:
            env_service([*call, "--help"])
        assert ended.value.code == 0
    printed = capsys.readouterr().out
    used = {word for call in calls for word in call if word.startswith("--")}
    assert used and all(word in printed for word in used)
