"""install.sh against a stub of Python and pip: what it asks for, in which order, and what it says when something is
missing."""

import runpy
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
entries = runpy.run_path(str(ROOT / "requirements" / "hashes.py"))["entries"]
STUB = Path(__file__).parent / "stub_python.sh"
PYTHONS = ("python3.11", "python3.12", "python3", "python")
HASHED = "--no-deps --no-build-isolation --require-hashes"
NOT_FOUND = "ERROR: No matching distribution found for torch==2.13.0+cpu"


@dataclass
class Checkout:
    """A copy of what install.sh needs, and a PATH on which every Python is the stub."""

    folder: Path
    tools: Path
    env: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str) -> list[str]:
        return ["bash", str(self.folder / "install.sh"), *arguments]

    def environment(self, **env: str) -> dict[str, str]:
        path = f"{self.tools}:/usr/bin:/bin"
        return {
            "PATH": path,
            "HOME": str(self.folder),
            "STUB_LOG": str(self.folder.parent / "calls"),
            **self.env,
            **env,
        }

    def install(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment(**env),
            check=False,
        )

    def pip_calls(self) -> list[str]:
        log = self.folder.parent / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.strip().removeprefix("-m pip install ") for line in lines if line.startswith("-m pip install ")]

    def forget_calls(self) -> None:
        (self.folder.parent / "calls").unlink(missing_ok=True)

    def tool(self, name: str, script: str) -> None:
        path = self.tools / name
        path.write_text(f"#!/usr/bin/env bash\n{script}\n")
        path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder, tools = tmp_path / "checkout", tmp_path / "tools"
    tools.mkdir()
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for name in ("install.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in PYTHONS:
        shutil.copy(STUB, tools / name)
    made = Checkout(folder, tools)
    made.tool("nvidia-smi", "exit 1")
    made.tool("df", "echo header; echo disk 0 0 90000000 0% /")
    return made


def tail(call: str) -> str:
    """A pip call without the options that every call has."""
    return call.partition("--timeout 60 ")[2]


def test_the_cpu_stack_is_installed_in_order_and_never_with_dependencies(checkout: Checkout) -> None:
    done = checkout.install("--cpu")
    assert done.returncode == 0, done.stderr
    setuptools, torch, lock, shim, project = (tail(call) for call in checkout.pip_calls())
    assert setuptools == f"{HASHED} -r {checkout.folder}/.agentevolver/setuptools.lock"
    assert torch == f"{HASHED} -r {checkout.folder}/.agentevolver/torch.lock"
    assert lock == f"{HASHED} -r {checkout.folder}/requirements/cpu.lock"
    assert shim.startswith("--no-deps --no-build-isolation --force-reinstall ./")
    assert project == "--no-deps --no-build-isolation -e ."
    assert "done; next: bash examples/run_overall.sh" in done.stdout


def test_a_second_run_does_nothing_and_is_fast(checkout: Checkout) -> None:
    assert checkout.install("--cpu").returncode == 0
    checkout.forget_calls()
    began = time.monotonic()
    done = checkout.install("--cpu")
    assert time.monotonic() - began < 5
    assert done.returncode == 0 and "nothing to do" in done.stdout
    assert checkout.pip_calls() == []


def test_cuda_is_chosen_where_a_gpu_is_and_never_mixed_with_the_cpu_stack(checkout: Checkout) -> None:
    assert checkout.install("--cpu").returncode == 0
    checkout.forget_calls()
    checkout.tool("nvidia-smi", "echo 'GPU 0: NVIDIA H200'")
    checkout.tool("cc", "exit 0")
    done = checkout.install()
    assert done.returncode == 0, done.stderr
    assert "replacing .venv" in done.stdout
    _, lock, project = (tail(call) for call in checkout.pip_calls())
    assert lock == f"{HASHED} -r {checkout.folder}/requirements/cuda.lock" and project.endswith("-e .")


def test_what_is_installed_first_has_its_hashes_in_the_lock(checkout: Checkout) -> None:
    assert checkout.install("--cpu").returncode == 0
    whole = entries((checkout.folder / "requirements" / "cpu.lock").read_text())
    for name in ("setuptools", "torch"):
        alone = entries((checkout.folder / ".agentevolver" / f"{name}.lock").read_text())
        assert alone == {name: whole[name]} and whole[name][1]


def test_pytorchs_own_index_is_asked_second_and_the_cuda_build_never(checkout: Checkout) -> None:
    done = checkout.install("--cpu", STUB_FAIL=r"torch\.lock", STUB_MESSAGE=NOT_FOUND)
    assert done.returncode == 1
    _, first, second = (tail(call) for call in checkout.pip_calls())
    assert first == f"{HASHED} -r {checkout.folder}/.agentevolver/torch.lock"
    assert second == first.replace(" -r", " --extra-index-url https://download.pytorch.org/whl/cpu -r")
    assert (
        "no CPU build of torch found (torch==2.13.0+cpu," in done.stderr
        and "The CUDA build is not taken in its place" in done.stderr
    )


def test_cuda_packages_in_a_cpu_environment_are_refused(checkout: Checkout) -> None:
    done = checkout.install("--cpu", STUB_CUDA="1")
    assert done.returncode == 1 and "CUDA packages in the environment" in done.stderr
    assert "nothing to do" not in checkout.install("--cpu").stdout


def test_a_failure_of_pip_is_explained(checkout: Checkout) -> None:
    message = (
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n    six==1.17.0 from "
        "https://mirror/six.whl:"
    )
    done = checkout.install("--cpu", STUB_FAIL=r"cpu\.lock", STUB_MESSAGE=message)
    assert done.returncode == 1
    assert "a file is not the one that was pinned: six==1.17.0" in done.stderr and "install.log" in done.stderr
    assert message in (checkout.folder / ".agentevolver" / "install.log").read_text()


def test_an_old_python_is_named_with_what_to_do(checkout: Checkout) -> None:
    done = checkout.install("--cpu", STUB_UNFIT="3.9.2")
    assert done.returncode == 1
    assert "no Python 3.11 or 3.12 found; on PATH: python3.11 (Python 3.9.2)" in done.stderr
    assert "apt install python3.11 python3.11-venv" in done.stderr
    assert "is not a 64-bit Python 3.11 or 3.12" in checkout.install("--python", "/bin/false").stderr


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_stops_pip_and_the_next_one_continues(number: signal.Signals, checkout: Checkout) -> None:
    process = subprocess.Popen(
        checkout.command("--cpu"),
        env=checkout.environment(STUB_HANG=r"cpu\.lock"),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    until(lambda: any("cpu.lock" in call for call in checkout.pip_calls()))
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130 and "run install.sh again" in said
    assert subprocess.run(["pgrep", "-f", str(checkout.folder)], capture_output=True, check=False).stdout == b""
    done = checkout.install("--cpu")
    assert done.returncode == 0 and "an earlier run did not finish" in done.stdout
    assert any(
        line.strip().endswith("venv_check.py mend")
        for line in (checkout.folder.parent / "calls").read_text().splitlines()
    )


def test_two_runs_at_once_do_the_work_once(checkout: Checkout) -> None:
    env = checkout.environment()
    both = [subprocess.Popen(checkout.command("--cpu"), env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(checkout.pip_calls()) == 5
    assert sum("nothing to do" in text for text in said) == 1
