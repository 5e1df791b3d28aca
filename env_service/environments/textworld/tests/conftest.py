"""Skips this folder, with the reason, where textworld is missing."""

from collections.abc import Iterator

import pytest
from needing import skip_below

from env_service.environments.textworld.games import SETUP, installed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if item.path.name != "test_frame.py"]
    skip_below(__file__, own, installed(), f"textworld is not installed; run `{SETUP}`")


@pytest.fixture(autouse=True, scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for the games that these tests make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEXTWORLD_GAMES", str(tmp_path_factory.mktemp("games")))
        yield
