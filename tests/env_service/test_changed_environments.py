"""Which environments a change concerns."""

from __future__ import annotations

from pathlib import Path

import pytest

from env_service import registry
from tests import changed_environments

IN = changed_environments.INSIDE


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        ([], set()),
        (["docs/env_service.md", "agentevolver/view/app.py"], set()),
        ([f"{IN}sky/env.py"], {"sky", "rain", "flood"}),
        ([f"{IN}flood/tests/test_env.py", f"{IN}gone/env.py"], {"flood"}),
        ([f"{IN}sky/README.md", "env_service/base.py"], {"sky", "rain", "flood", "sand"}),
        (None, {"sky", "rain", "flood", "sand"}),
    ],
)
def test_a_change_concerns_the_folder_and_those_that_import_it(
    files: list[str] | None, folders: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, imports in {"sky": "", "rain": '"sky"', "flood": '"rain"', "sand": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / registry.REGISTRATION).write_text(f"imports = [{imports}]\n[serves]\n")
    monkeypatch.setattr(registry, "FOLDERS", tmp_path)
    assert changed_environments.concerned(files) == folders
