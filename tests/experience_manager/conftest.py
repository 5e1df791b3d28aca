"""Helpers of these tests are modules beside them; an empty store, which most of them begin with."""

import sys
from pathlib import Path

import pytest

from experience_manager.store import Store

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.sqlite") as opened:
        yield opened
