"""Experiments by the names that a person gives them."""

from pathlib import Path

import pytest

from agentevolver.utils.errors import UsageError
from agentevolver.utils.experiments import find_experiment


def test_an_experiment_is_found_by_its_name(tmp_path: Path) -> None:
    root = tmp_path / "experiments"
    for name in ("pocket/basic", "pocket/twice", "other/twice"):
        (root / name / "launches").mkdir(parents=True)
    assert find_experiment("basic", root) == find_experiment("pocket/basic", root) == root / "pocket" / "basic"
    assert find_experiment(str(root / "pocket" / "basic"), root) == root / "pocket" / "basic"
    with pytest.raises(UsageError, match="no experiment of that name was started here; there are other/twice"):
        find_experiment("basics", root)
    with pytest.raises(UsageError, match=r"twice may be .*other/twice or .*pocket/twice"):
        find_experiment("twice", root)
