"""An empty store."""

import pytest

from experience_manager.store import Store


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.sqlite") as opened:
        yield opened
