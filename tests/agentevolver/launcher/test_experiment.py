"""One experiment holds one configuration: what may change between launches, and what is refused before anything
starts."""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from agentevolver.config.changes import NEUTRAL, changes
from agentevolver.config.checks import load
from agentevolver.config.trees import paths
from agentevolver.launcher.experiment import (
    forget_listing,
    last_launch,
    problem_with,
)
from agentevolver.launcher.plan import as_yaml, resolve_config
from agentevolver.utils.errors import UsageError
from tests.constants import ENDPOINT

EXAMPLE = Path(__file__).parents[3] / "examples" / "navigating.yaml"


def resolved(*overrides: str) -> dict[str, Any]:
    return resolve_config(load(EXAMPLE, ["device=cpu", *ENDPOINT, *overrides]).config)


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    return resolved()


def keys(before: dict[str, Any], *overrides: str) -> list[str]:
    return [change.key for change in changes(before, changed(before, *overrides))]


def changed(before: dict[str, Any], *overrides: str) -> dict[str, Any]:
    merged: Any = OmegaConf.to_container(
        OmegaConf.merge(before, OmegaConf.from_dotlist(list(overrides))), resolve=False
    )
    return merged


@pytest.mark.thorough
def test_the_number_of_gpus_and_nodes_is_no_other_experiment(before: dict[str, Any]) -> None:
    """Composed anew: verl's configuration copies them to other places."""
    assert changes(before, resolved("trainer.n_gpus_per_node=2", "trainer.nnodes=2")) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("actor_rollout_ref.actor.optim.lr=1e-5", "actor_rollout_ref.actor.optim.lr"),
        ("data.seed=3", "data.seed"),
        ("actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B", "actor_rollout_ref.model.path"),
    ],
)
def test_what_decides_what_is_learned_may_not(before: dict[str, Any], override: str, key: str) -> None:
    assert key in keys(before, override)


@pytest.mark.thorough
def test_another_address_of_a_model_is_the_same_model_and_the_stand_in_is_not(before: dict[str, Any]) -> None:
    here, there = (
        changed(before, f"llm.base_url={url}") for url in ("http://127.0.0.1:1/v1", "https://api.example.org/v1")
    )
    assert changes(here, there) == []
    assert [change.key for change in changes(changed(before, "llm.base_url=offline"), here)] == ["llm.base_url"]


def test_a_checkout_that_was_moved_and_keys_that_a_release_added_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentevolver.utils.recipes.models", lambda: {"shipped": Path("/here/recipe/shipped_files")})
    old = {"actor_rollout_ref": {"model": {"path": "/a/recipe/shipped_files"}}, "data": {"seed": 1}}
    new = {"actor_rollout_ref": {"model": {"path": "/b/recipe/shipped_files", "new": 1}}, "data": {"seed": 1}}
    assert changes(old, new) == []
    new["actor_rollout_ref"]["model"]["path"] = "/b/recipe/other_files"
    assert [change.key for change in changes(old, new)] == ["actor_rollout_ref.model.path"]


def test_every_pattern_of_neutral_keys_fits_a_key_that_exists(before: dict[str, Any]) -> None:
    known = list(paths(before))
    assert [pattern for pattern in NEUTRAL if not any(fnmatchcase(key, pattern) for key in known)] == []


@pytest.fixture
def experiment(tmp_path: Path, before: dict[str, Any]) -> Path:
    folder = tmp_path / "experiments" / "pocket" / "e"
    (folder / "tasks").mkdir(parents=True)
    (folder / "tasks" / "train.jsonl").write_text("{}\n")
    (folder / "config.yaml").write_text(as_yaml(before))
    return folder


@pytest.mark.thorough
def test_the_file_differs_in_nothing_from_what_was_written(experiment: Path, before: dict[str, Any]) -> None:
    (experiment / "metrics.jsonl").write_text('{"step": 0}\n')
    read = OmegaConf.to_container(OmegaConf.load(experiment / "config.yaml"), resolve=False)
    assert read == before and problem_with(experiment, before) is None


def test_a_damaged_record_of_the_configuration_is_no_leave_to_go_on(experiment: Path, before: dict[str, Any]) -> None:
    (experiment / "metrics.jsonl").write_text('{"step": 0}\n')
    (experiment / "config.yaml").write_text("a: [\n")
    assert "cannot be read" in (problem_with(experiment, before) or "")


@pytest.mark.thorough
def test_lists_of_tasks_of_a_launch_that_learned_nothing_are_made_anew(
    experiment: Path, before: dict[str, Any]
) -> None:
    listing = experiment / "tasks" / "train.jsonl"
    assert problem_with(experiment, changed(before, "data.seed=7")) is None
    forget_listing(experiment, before)
    assert listing.exists()
    forget_listing(experiment, changed(before, "data.train_filter.n=5"))
    assert not listing.exists()
    listing.write_text("{}\n")
    (experiment / "metrics.jsonl").write_text('{"step": 0}\n')
    forget_listing(experiment, changed(before, "data.train_filter.n=5"))
    assert listing.exists(), "a run that has begun keeps its tasks"


def test_the_last_launch_that_trained_says_how_an_experiment_goes_on(tmp_path: Path) -> None:
    (tmp_path / "launches").mkdir()
    with pytest.raises(UsageError, match="holds no record of a launch with a yaml"):
        last_launch(tmp_path)
    for name, argv in (("1", ["--conf", "a.yaml"]), ("2", ["--conf", "b.yaml", "x=1"]), ("3", ["--with-reme"])):
        (tmp_path / "launches" / f"{name}.json").write_text(json.dumps({"argv": argv}))
    (tmp_path / "launches" / "4.json").write_text("{torn")
    assert last_launch(tmp_path)["argv"] == ["--conf", "b.yaml", "x=1"]
    for name, wrong in (("5", {"argv": ["--no-such"]}), ("6", {"argv": "c.yaml"}), ("7", {}), ("8", [])):
        (tmp_path / "launches" / f"{name}.json").write_text(json.dumps(wrong))
    assert last_launch(tmp_path)["argv"] == ["--conf", "b.yaml", "x=1"]
    # As `agentevolver run c.yaml` is recorded.
    (tmp_path / "launches" / "9.json").write_text(json.dumps({"argv": ["c.yaml", "x=2"]}))
    assert last_launch(tmp_path)["argv"] == ["c.yaml", "x=2"]
