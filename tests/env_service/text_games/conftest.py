"""Skips this folder, with the reason, where textworld is missing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from env_service.environments.textworld.games import SETUP, installed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    if installed():
        return
    for item in items:
        if here in item.path.parents and "without_the_package" not in item.name:
            item.add_marker(pytest.mark.skip(reason=f"textworld is not installed; run `{SETUP}`"))


@pytest.fixture(autouse=True, scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for the games that these tests make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEXTWORLD_GAMES", str(tmp_path_factory.mktemp("games")))
        yield
