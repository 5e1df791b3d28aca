"""The command `agentevolver`: each verb reaches what does it, help is fast. Wrong input: `test_bad_input`."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agentevolver import cli
from agentevolver.errors import LaunchError
from agentevolver.launcher import cli as launcher
from agentevolver.launcher import doctor, experiment
from agentevolver.launcher.options import parse

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "verl", "vllm", "transformers", "numpy", "omegaconf", "hydra", "pydantic", "httpx", "fastapi")


@pytest.mark.parametrize(
    ("arguments", "launched"),
    [
        (["run", "x.yaml", "a=1", "--dry-run"], ["x.yaml", "a=1", "--dry-run"]),
        (["resume", "pocket/basic", "a=1"], ["--resume", "pocket/basic", "a=1"]),
        (["view", "folder", "--port", "9000"], ["--view", "folder", "--port", "9000"]),
        (["status"], ["--status"]),
        (["stop"], ["--stop"]),
        (["stop", "basic"], ["--stop", "basic"]),
    ],
)
def test_verbs_of_the_launcher(monkeypatch: pytest.MonkeyPatch, arguments: list[str], launched: list[str]) -> None:
    seen = []
    monkeypatch.setattr(launcher, "main", lambda given, root, prog: seen.append((given, root, prog)) or 7)
    assert cli.main(arguments) == 7
    assert seen == [(launched, ROOT, f"agentevolver {arguments[0]}")]
    parse(launched)


def test_a_yaml_needs_no_conf() -> None:
    options = parse(["a=b.yaml", "examples/basic.yaml", "c=1"])
    assert options.conf == Path("examples/basic.yaml") and options.overrides == ("a=b.yaml", "c=1")


@pytest.mark.parametrize("verb", cli.VERBS)
def test_each_verb_has_help(capfd: pytest.CaptureFixture[str], verb: str) -> None:
    try:
        code = cli.main([verb, "--help"])
    except SystemExit as ended:
        code = ended.code
    assert not code and capfd.readouterr().out.startswith(f"usage: agentevolver {verb}")


def test_help_names_each_verb_and_imports_nothing_that_takes_time() -> None:
    code = (
        "import sys; from agentevolver.cli import main; main(['--help'])\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    answered = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answered.stdout.splitlines()[-1] == "LOADED []"
    assert all(f"\n  {verb} " in answered.stdout for verb in cli.VERBS)


def test_the_version_names_the_commit() -> None:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    number = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert cli.version().startswith(f"agentevolver {number}")
    if done.returncode == 0:
        assert cli.version().endswith(f" at {done.stdout[:12]}")


def completed(shell: str, folder: Path, *words: str) -> set[str]:
    """Type words in a shell whose completion is ours; returns what is offered for the last one."""
    script = folder / f"completion.{shell}"
    if not script.exists():
        made = subprocess.run(
            [sys.executable, "-m", "agentevolver", "completion", shell], cwd=ROOT, capture_output=True
        )
        script.write_bytes(made.stdout)
    typed = " ".join(f"{word!r}" for word in ("agentevolver", *words))
    if shell == "fish":
        command = f"source {script}; complete -C {chr(39)}agentevolver {' '.join(words)}{chr(39)}"
    else:
        command = (
            f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _agentevolver; "
            "printf '%s\\n' \"${COMPREPLY[@]}\""
        )
    arguments = [shell, "--norc", "-c", command] if shell == "bash" else [shell, "-c", command]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_the_shell_completes_verbs_options_experiments_and_files(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "experiments" / "pocket" / "basic" / "launches").mkdir(parents=True)
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "notes.txt").touch()
    assert completed(shell, tmp_path, "ex") == {"export"}
    assert "pocket/basic" in completed(shell, tmp_path, "export", "")
    assert {"--adapters", "--dtype"} <= completed(shell, tmp_path, "export", "--")
    offered = completed(shell, tmp_path, "run", "")
    assert "mine.yaml" in offered and "notes.txt" not in offered
    assert completed(shell, tmp_path, "completion", "z") == {"zsh"}


def test_zsh_takes_its_script(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    made = subprocess.run([sys.executable, "-m", "agentevolver", "completion", "zsh"], cwd=ROOT, capture_output=True)
    (tmp_path / "script").write_bytes(made.stdout)
    command = f"source {tmp_path / 'script'}; print -r -- $_comps[agentevolver]"
    done = subprocess.run(["zsh", "-f", "-c", command], capture_output=True, text=True, timeout=30, check=True)
    assert "_agentevolver" in done.stdout and done.stderr == ""


def test_what_new_writes_passes_check(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agentevolver", *arguments]
        environ = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    assert run("new", "number_game").returncode == 0
    checked = run("check", "number_game", "--env-module", "number_game=number_game.env:NumberGameEnv", "--action", "50")
    assert checked.returncode == 0 and "keeps the contract" in checked.stdout


def test_doctor_on_a_sound_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ok      disk", "ok      shared memory"]


def test_doctor_names_every_problem_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path) -> None:
        raise LaunchError("0.1 GB free")

    monkeypatch.setattr(experiment, "check_disk", full)
    monkeypatch.setattr(doctor, "SHM", Path("/nowhere"))
    assert cli.main(["doctor"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "PROBLEM disk: 0.1 GB free" and second.startswith("ok      shared memory")


def test_shared_memory_smaller_than_the_object_store(tmp_path: Path) -> None:
    assert not doctor.shared_memory(10**18, tmp_path).works
    assert doctor.shared_memory(1, tmp_path).works and doctor.shared_memory(None, tmp_path).works
    assert "is missing" in doctor.shared_memory(1, tmp_path / "none").found
