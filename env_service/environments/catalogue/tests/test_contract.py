"""The contract of environments."""

from __future__ import annotations

from pathlib import Path

import pytest
from environment_checks import keeps_the_contract

from env_service.environments.catalogue.build import build
from env_service.environments.catalogue.tools import FOLDER_VARIABLE


@pytest.mark.service
def test_it_keeps_the_contract(tmp_path: Path) -> None:
    build(tmp_path, ["pocket", "bfcl"], "hashing")
    keeps_the_contract("catalogue", **{FOLDER_VARIABLE: str(tmp_path)})
