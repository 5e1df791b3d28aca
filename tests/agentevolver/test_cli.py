"""The command `agentevolver`: help is fast, completion and doctor. Wrong input: `test_bad_input`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentevolver import cli
from agentevolver.launcher import doctor, experiment

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "verl", "vllm", "transformers", "numpy", "omegaconf", "hydra", "pydantic", "httpx", "fastapi")


def test_help_names_each_verb_and_imports_nothing_that_takes_time() -> None:
    code = (
        "import sys; from agentevolver.cli import main; main(['--help'])\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    answered = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answered.stdout.splitlines()[-1] == "LOADED []"
    assert all(f"\n  {verb} " in answered.stdout for verb in cli.VERBS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_is_a_script_that_its_shell_takes(shell: str, tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "agentevolver", "completion", shell], cwd=ROOT, capture_output=True, check=True
    )
    (tmp_path / "script").write_bytes(made.stdout)
    assert b"export" in made.stdout and b"adapters" in made.stdout
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)
    if shell != "bash":
        return
    typed = "COMP_WORDS=(agentevolver export exper); COMP_CWORD=2; _shtab_agentevolver; echo ${COMPREPLY[@]}"
    (tmp_path / "experiments").mkdir()
    command = ["bash", "--norc", "-c", f"source ./script; {typed}"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout == "experiments\n"


def test_doctor_names_every_problem_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ok      disk", "ok      shared memory"]
    monkeypatch.setattr(experiment, "free_bytes", lambda folder: 1e8)
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().out.startswith("PROBLEM disk: 0.1 GB free")
    assert not doctor.shared_memory(10**18, tmp_path)[0]
    assert doctor.shared_memory(1, tmp_path)[0] and "is missing" in doctor.shared_memory(1, tmp_path / "none")[1]
