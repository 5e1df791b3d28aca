"""One short run of the whole stack that several tests look at."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.runs import Launched, launch


@dataclass
class Finished:
    """A run that went to its end, and what it left outside of its folder."""

    launched: Launched
    returncode: int
    left_behind: set[str]

    @property
    def directory(self) -> Path:
        return self.launched.directory


@pytest.fixture(scope="session")
def basic_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    steps = ("trainer.total_training_steps=3", "trainer.save_freq=1", "trainer.test_freq=3")
    launched = launch(tmp_path_factory.mktemp("basic"), "exact", *steps)
    try:
        returncode = launched.wait()
        yield Finished(launched, returncode, launched.left_behind())
    finally:
        launched.end()
