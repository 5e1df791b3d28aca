"""What ran is written down, uncommitted changes included, and a checkout without git is no obstacle."""

import json
import subprocess
from pathlib import Path

import pytest

from agentevolver.launcher.records import LaunchRecord, code_state


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "code.py").write_text("one = 1\n")
    for command in ("init -q", "add code.py", "-c user.name=t -c user.email=t@t commit -q -m first"):
        subprocess.run(["git", "-C", str(folder), *command.split()], check=True)
    return folder


@pytest.mark.thorough
def test_changes_are_kept_as_a_patch_and_new_files_by_name(checkout: Path, tmp_path: Path) -> None:
    (checkout / "code.py").write_text("one = 2\n")
    (checkout / "new.py").write_text("")
    LaunchRecord(tmp_path / "e", "r1", ["--conf", "x"], checkout, "key: value\n").finish(3)
    facts = json.loads((tmp_path / "e" / "launches" / "r1.json").read_text())
    assert facts["code"]["dirty"] is True and facts["code"]["untracked"] == ["new.py"]
    assert facts["exit_code"] == 3 and facts["argv"] == ["--conf", "x"]
    assert facts["cwd"] == str(Path.cwd())
    assert (tmp_path / "e" / "launches" / "r1.yaml").read_text() == "key: value\n"
    pins = (tmp_path / "e" / "launches" / f"packages-{facts['packages']['sha256'][:12]}.txt").read_text().splitlines()
    assert len(pins) == facts["packages"]["count"] and f"torch=={facts['packages']['torch']}" in pins
    assert "+one = 2" in (tmp_path / "e" / "launches" / "r1.diff").read_text()


def test_no_git_is_no_obstacle(tmp_path: Path) -> None:
    assert code_state(tmp_path) == ({"commit": None, "dirty": None, "untracked": []}, b"")
