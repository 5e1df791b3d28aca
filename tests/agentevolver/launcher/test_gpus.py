"""What nvidia-smi and the files of the driver and of torch say, read without any of them."""

from pathlib import Path

import pytest

from agentevolver.launcher import accelerator as module
from agentevolver.launcher.accelerator import Driver, driver, driver_problem, gpus, parse_gpus, parse_smi, torch_cuda

TWO = """0, GPU-5a1e5c2e-77b7-2b44-f1f3-3a0a1d6b7c11, NVIDIA H100 80GB HBM3, 81559, 4
1, GPU-0c8f9d10-1234-4e5f-8a9b-ffeeddccbbaa, NVIDIA H100 80GB HBM3, 81559, 70312
"""
TABLE = """Tue Mar  3 09:12:44 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.82.07              Driver Version: 580.82.07      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
"""
OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  "
    "(dvs-builder@U22)\nGCC version: 12.3.0\n"
)
OLD_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n"


def answering(**answers):
    return lambda command: answers["query" if len(command) > 1 else "table"]


def test_gpus_are_read_and_what_is_no_gpu_is_left_out():
    first, second = parse_gpus("a warning\n" + TWO + "2, GPU-1, NVIDIA A30, [N/A], [N/A]\n")
    assert (first.name, first.memory, first.used) == ("NVIDIA H100 80GB HBM3", 81559 << 20, 4 << 20)
    assert second.index == 1 and second.used == 70312 << 20


@pytest.mark.parametrize(
    ("devices", "seen"),
    [(None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("", []), ("-1", []), ("0,7,1", [0]), ("GPU-0c8f9d10", [1])],
)
def test_cuda_visible_devices_chooses_as_cuda_does(devices, seen):
    environment = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    assert [gpu.index for gpu in gpus(environment, answering(query=TWO))] == seen


def test_no_nvidia_smi_is_not_no_gpu():
    assert gpus({}, lambda command: None) is None
    assert gpus({}, lambda command: "") == []


@pytest.mark.parametrize("memory", ["[N/A], [N/A]", "[Insufficient Permissions], [Insufficient Permissions]"])
def test_gpus_whose_memory_is_not_told_are_not_no_gpus(memory):
    row = f"0, GPU-5a1e5c2e, NVIDIA GB10, {memory}\n"
    for environment in ({}, {"CUDA_VISIBLE_DEVICES": "0"}):
        assert gpus(environment, answering(query=row)) is None
        assert gpus(environment, answering(query=TWO + row.replace("0", "2", 1))) is None
    for nothing in ("", "-1"):
        assert gpus({"CUDA_VISIBLE_DEVICES": nothing}, answering(query=row)) == []


@pytest.mark.parametrize(
    "devices", ["MIG-7c4e0b5e-2c1b-5d0c-9a53-9bd4a2c9bb0f", "MIG-GPU-5a1e5c2e/1/0", "0,MIG-7c4e0b5e"]
)
def test_parts_of_gpus_are_not_no_gpus(devices):
    assert gpus({"CUDA_VISIBLE_DEVICES": devices}, answering(query=TWO)) is None


def test_a_tool_that_is_not_there_fails_or_hangs_says_nothing(monkeypatch, tmp_path):
    assert module.run_tool(["no-such-tool-anywhere"]) is None
    assert module.run_tool(["false"]) is None
    assert module.run_tool(["echo", "yes"]) == "yes\n"
    monkeypatch.setattr(module, "TIMEOUT_S", 0.05)
    assert module.run_tool(["sleep", "5"]) is None


def test_the_driver_is_read_from_the_table_else_from_the_kernels_module(tmp_path: Path):
    proc = tmp_path / "version"
    assert parse_smi(TABLE) == Driver("580.82.07", "13.0")
    assert driver(lambda command: TABLE, proc) == Driver("580.82.07", "13.0")
    assert driver(lambda command: None, proc) is None
    proc.write_text(OPEN_MODULE)
    assert driver(lambda command: None, proc) == Driver("580.82.07", None)
    proc.write_text(OLD_MODULE)
    assert driver(lambda command: None, proc) == Driver("470.256.02", None)


@pytest.mark.parametrize(
    ("installed", "built_for", "fits"),
    [
        (Driver("580.82.07", "13.0"), "13.0", True),
        (Driver("580.82.07", "13.0"), "12.8", True),
        (Driver("570.86.15", "12.8"), "12.9", True),  # minor versions are compatible
        (Driver("570.86.15", "12.8"), "13.0", False),
        (Driver("570.86.15", "13.0"), "13.0", True),  # with the package for compatibility in front of it
        (Driver("570.86.15", None), "13.0", False),
        (Driver("580.65.06", None), "13.0", True),
        (Driver("580.65.05", None), "13.0", False),
        (Driver("525.60.13", None), "12.1", True),
        (Driver("600.1", None), "14.0", True),  # not known, hence not refused
    ],
)
def test_a_driver_runs_every_torch_of_its_major_version_and_below(installed, built_for, fits):
    problem = driver_problem(installed, built_for)
    assert (problem is None) is fits
    if problem is not None:
        assert installed.version in problem and built_for in problem and "install driver 580.65.6 or newer" in problem


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ('cuda = "12.8"', "12.8"),
        ("cuda: Optional[str] = None", None),
        ("hip = None", None),
    ],
)
def test_what_torch_was_built_for_is_read_in_its_files(line, found, tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        f"__version__ = '2.11.0'\ndebug = False\n{line}\ngit_version = 'abc'\n"
    )
    spec = type("Spec", (), {"origin": str(tmp_path / "torch" / "__init__.py")})
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: spec)
    assert torch_cuda() == found


def test_the_installed_torch_is_the_one_that_is_read():
    import torch

    assert torch_cuda() == torch.version.cuda
