"""The pins are complete, agree with what the code declares and with what verl asks for, and hold no CUDA where there is
none."""

import runpy
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "requirements"
HASHES = runpy.run_path(str(LOCKS / "hashes.py"))


def pins(name: str) -> dict[str, str]:
    return {package: version for package, (version, _) in HASHES["entries"]((LOCKS / name).read_text()).items()}


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def unmet(requirements: list[str], pinned: dict[str, str]) -> list[str]:
    parsed = [Requirement(item) for item in requirements]
    return [
        str(item)
        for item in parsed
        if (item.marker is None or item.marker.evaluate({"extra": ""}))
        and not item.specifier.contains(pinned.get(canonicalize_name(item.name), "0"), prereleases=True)
    ]


@pytest.mark.parametrize("lock", HASHES["LOCKS"], ids=lambda lock: f"{lock.parent.name}-{lock.name}")
def test_every_pin_says_which_files_may_be_installed(lock: Path) -> None:
    assert [name for name, (_, hashes) in HASHES["entries"](lock.read_text()).items() if not hashes] == []


def test_a_line_that_is_no_pin_and_a_package_that_is_pinned_twice_are_refused() -> None:
    digest = "0" * 64
    for wrong in (
        "six>=1\n",
        "six==1 --hash=md5:00\n",
        f"six==1 \\\n    --hash=sha256:{digest[1:]}\n",
        "Six==1\nsix==2\n",
    ):
        with pytest.raises(ValueError, match="pin"):
            HASHES["entries"](wrong)
    assert HASHES["entries"](f"# why\nA_b==1.0+cpu \\\n    --hash=sha256:{digest}\n") == {
        "a-b": ("1.0+cpu", frozenset([digest]))
    }


@pytest.mark.parametrize(("device", "extra"), [("cpu.lock", "cpu"), ("cuda.lock", "cuda")])
def test_a_lock_satisfies_what_the_project_declares(device: str, extra: str, project: dict[str, object]) -> None:
    pinned = pins(device)
    assert unmet(project["dependencies"], pinned) == []  # type: ignore[arg-type]
    assert unmet(project["optional-dependencies"][extra], pinned) == []  # type: ignore[index]


def test_the_development_lock_holds_tools_alone(project: dict[str, object]) -> None:
    pinned = pins("dev.lock")
    extras: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    files = ROOT.glob("env_service/environments/*/requirements.txt")
    environments = [line for file in files for line in file.read_text().splitlines() if not line.startswith("#")]
    for device in ("cpu.lock", "cuda.lock"):  # which it lies on top of
        assert unmet([*extras["dev"], *extras["docs"], *environments], {**pins(device), **pinned}) == []
    assert set(pinned) & set(pins("cpu.lock")) == set() and set(pinned) & set(pins("cuda.lock")) == set()


def test_no_cuda_package_is_pinned_for_the_cpu() -> None:
    pinned = pins("cpu.lock")
    assert [name for name in pinned if name.startswith(("nvidia-", "cuda-", "flashinfer"))] == []
    assert pinned["torch"].endswith("+cpu")


def test_the_cuda_lock_is_what_verl_asks_for() -> None:
    declared = [Requirement(item) for item in metadata.requires("verl") or []]
    asked = [item for item in declared if item.marker is None or item.marker.evaluate({"extra": "vllm"})]
    test_tools = {"pytest", "pytest-asyncio", "pytest-rerunfailures"}
    bare = [f"{item.name}{item.specifier}" for item in asked if item.name not in {"verl", *test_tools}]
    assert "vllm==0.24.0" in bare
    assert unmet(bare, pins("cuda.lock")) == []


def test_what_is_installed_is_what_is_pinned() -> None:
    pinned = (
        {**pins("cpu.lock"), **pins("dev.lock")} if metadata.version("torch").endswith("+cpu") else pins("cuda.lock")
    )
    # setuptools, once imported, shows what it carries along as if it were installed.
    found = metadata.distributions(path=[sysconfig.get_path("purelib")])
    installed = {canonicalize_name(item.metadata["Name"]): item.version for item in found}
    assert {
        name: (version, installed.get(name)) for name, version in pinned.items() if installed.get(name) != version
    } == {}


def test_verl_finds_the_plugin() -> None:
    found = [point.value for point in metadata.entry_points(group="verl.plugins") if point.name == "agentevolver"]
    assert found == ["agentevolver.trainer.verl_plugin"]
