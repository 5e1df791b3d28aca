"""Parameters, splits, and what is said when AppWorld is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from env_service.environments.appworld.env import AppworldEnv
from env_service.environments.appworld.installation import AppworldNotInstalled, Installation
from env_service.environments.appworld.settings import AppworldParams, difficulty_of, split_name


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"simpel": True}, "did you mean 'simple'"),
        ({"python": "/bin/sh"}, "unknown parameter 'python'"),
        ({"sparse": 1}, "must be of type bool"),
        ({"timeout_s": True}, "must be of type float"),
        ({"max_interactions": 0}, "max_interactions=0"),
        ({"timeout_s": 1000}, "timeout_s=1000"),
        ({"max_output_chars": 10}, "max_output_chars=10"),
    ],
)
def test_a_wrong_parameter_is_refused_with_its_name(params: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AppworldParams().updated(params)


def test_splits_have_the_names_of_appworld_and_of_the_trainer() -> None:
    assert [split_name(name) for name in ("train", "val", "dev", "test")] == ["train", "dev", "dev", "test_normal"]
    with pytest.raises(ValueError, match=r"no split 'tset'.*test_challenge"):
        split_name("tset")


def test_a_task_list_can_be_narrowed_by_difficulty_and_by_nothing_else() -> None:
    assert difficulty_of(None) is None
    assert difficulty_of({"difficulty": 2}) == 2
    for params in ({"difficulty": 4}, {"difficulty": True}, {"level": 1}):
        with pytest.raises(ValueError, match="difficulty"):
            difficulty_of(params)


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a venv and data, as far as anybody looks."""
    python = tmp_path / "python"
    python.touch(mode=0o755)
    (tmp_path / "data" / "tasks" / "abc_1").mkdir(parents=True)
    (tmp_path / "data" / "tasks" / "abc_1" / "specs.json").write_text("{}")
    monkeypatch.setenv("APPWORLD_PYTHON", str(python))
    monkeypatch.setenv("APPWORLD_ROOT", str(tmp_path))
    return tmp_path


def test_a_missing_venv_is_reported_with_the_command_that_makes_it(somewhere: Path) -> None:
    (somewhere / "python").unlink()
    with pytest.raises(AppworldNotInstalled, match=r"bash env_service/environments/appworld/setup\.sh"):
        AppworldEnv("abc_1", "i")
    with pytest.raises(AppworldNotInstalled):
        AppworldEnv.get_query_list("train")


def test_missing_data_is_reported_with_the_command_that_downloads_it(somewhere: Path) -> None:
    (somewhere / "data" / "tasks").rename(somewhere / "elsewhere")
    with pytest.raises(AppworldNotInstalled, match="appworld download data"):
        AppworldEnv("abc_1", "i")


def test_the_installation_comes_from_the_environment_variables(somewhere: Path) -> None:
    assert Installation.find() == Installation(somewhere / "python", somewhere)


@pytest.mark.parametrize("task_id", ["nope_1", "../abc_1", "abc", "abc_1/..", ""])
def test_a_task_that_does_not_exist_is_a_wrong_request(somewhere: Path, task_id: str) -> None:
    with pytest.raises(ValueError, match="task"):
        AppworldEnv(task_id, "i")


def test_nothing_can_be_asked_before_the_episode_has_begun(somewhere: Path) -> None:
    env = AppworldEnv("abc_1", "i")
    for call in (lambda: env.step({"role": "assistant", "content": "x"}), env.evaluate, env.get_info):
        with pytest.raises(ValueError, match="call get_init_state first"):
            call()
    env.close()
