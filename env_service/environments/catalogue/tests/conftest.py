"""A catalogue of what is installed here, encoded by hashing, for these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from env_service.environments.catalogue import learned, tools
from env_service.environments.catalogue.build import build


@pytest.fixture(autouse=True, scope="session")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build it and make it the default."""
    folder = tmp_path_factory.mktemp("catalogue")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(tools.FOLDER_VARIABLE, str(folder))
        patch.delenv(learned.FILE_VARIABLE, raising=False)
        build(folder, ["pocket", "bfcl"], "hashing")
        yield
