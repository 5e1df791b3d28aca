"""What install.sh asks of an environment: half-installed packages are found, CUDA is noticed."""

import importlib.util
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[2] / "requirements" / "venv_check.py"


@pytest.fixture
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("venv_check", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def distribution(folder: Path, name: str, record: str | None, **files: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    if record is not None:
        (info / "RECORD").write_text(record)
    for file, content in files.items():
        (folder / f"{file}.py").write_text(content)


def test_only_incomplete_packages_are_forgotten(check: ModuleType, tmp_path: Path) -> None:
    distribution(
        tmp_path,
        "whole",
        "whole.py,sha256=x,4\nwhole-1.0.dist-info/RECORD,,\n__pycache__/whole.cpython-311.pyc,,\n",
        whole="abcd",
    )
    distribution(tmp_path, "cut_off", None)
    distribution(tmp_path, "short", "short.py,sha256=x,4\n", short="ab")
    distribution(tmp_path, "hollow", "hollow.py,sha256=x,4\n")
    (tmp_path / "~rch").mkdir()
    found = check.mend(tmp_path)
    assert [line.partition(":")[0] for line in found] == [
        "cut_off-1.0.dist-info",
        "hollow-1.0.dist-info",
        "short-1.0.dist-info",
    ]
    assert "RECORD is missing" in found[0] and "hollow.py is missing" in found[1] and "2 bytes instead of 4" in found[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["short.py", "whole-1.0.dist-info", "whole.py"]


class Named:
    def __init__(self, name: str) -> None:
        self.metadata = {"Name": name}


@pytest.mark.parametrize(
    ("names", "torch", "found"),
    [
        (["numpy", "torch"], "2.13.0+cpu", []),
        (["torch"], "2.13.0", ["torch 2.13.0"]),
        (["torch"], "2.13.0+cu130", ["torch 2.13.0+cu130"]),
        (["torch", "nvidia-cudnn-cu13", "NVIDIA-cublas"], "2.13.0+cpu", ["nvidia-cublas", "nvidia-cudnn-cu13"]),
    ],
)
def test_cuda_is_noticed(
    names: list[str], torch: str, found: list[str], check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "distributions", lambda: [Named(name) for name in names])
    monkeypatch.setattr(metadata, "version", lambda name: torch)
    assert check.cuda_distributions() == found
