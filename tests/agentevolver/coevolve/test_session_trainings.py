"""Trainings in a session, with a session that only says what it was asked: when it is opened, kept, and opened anew."""

import asyncio
import json
import logging
from pathlib import Path
from typing import ClassVar

import pytest
from omegaconf import OmegaConf

from agentevolver.coevolve import session_trainings
from agentevolver.coevolve.session_trainings import SessionTrainings
from agentevolver.coevolve.trainings import Training
from agentevolver.config.checks import load
from agentevolver.errors import ConfigError, TrainingFailed
from agentevolver.trainer import session as sessions
from agentevolver.trainer.fixed import CannotChange
from agentevolver.types import Task

BASIC = Path(__file__).parents[3] / "examples" / "basic.yaml"


class FakeSession:
    """Writes a step and a checkpoint for each training; what it was asked stands in `calls`."""

    calls: ClassVar[list[str]] = []
    fails: ClassVar[dict[str, Exception]] = {}

    def __init__(self):
        self.usable, self.first = True, None

    @classmethod
    def open(cls, config, settings):
        cls.calls.append("open")
        print("verl says much")
        return cls()

    def train(self, config, settings):
        name = settings.experiment_dir.name
        self.calls.append(name)
        lengths = config.actor_rollout_ref.rollout.max_model_len
        if self.first not in (None, lengths):
            raise CannotChange("a session cannot change max_model_len")
        self.first = lengths
        if (error := self.fails.get(name)) is not None:
            self.usable = not isinstance(error, TrainingFailed)
            raise error
        logging.getLogger("agentevolver").warning("%s is trained", name)
        folder = settings.experiment_dir
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "rollout/reward/mean": 0.5, "rollout/success": 1}))
        model = folder / "checkpoints" / "global_step_1" / "actor" / "huggingface"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        (model.parents[1] / "whole.json").write_text('{"number": 1, "files": {}}')

    def close(self):
        self.calls.append("close")


@pytest.fixture
def trainings(monkeypatch, tmp_path):
    FakeSession.calls, FakeSession.fails = [], {}
    monkeypatch.setattr(sessions, "Session", FakeSession)
    monkeypatch.setattr(session_trainings.job, "prepare", lambda config, settings: None)
    config = OmegaConf.to_container(load(BASIC, ["device=cpu", f"experiment.root={tmp_path}"]).config)
    shown: list = []
    made = SessionTrainings(config, shown.append)
    made.shown = shown
    return made


def training(folder, name, **overlay):
    task = Task("note_add.k1.1", "pocket", metadata={"split": "train"})
    keys = {"experiment.dir": str(folder / name), "trainer.default_local_dir": str(folder / name / "checkpoints")}
    return Training(name, folder / name, {**keys, **overlay}, [task], [task], "base", 1)


def carried_out(trainings, *wanted):
    async def run():
        try:
            return [await trainings.train(one, lambda phase, step: None) for one in wanted]
        finally:
            await trainings.close()

    return asyncio.run(run())


@pytest.mark.thorough
def test_one_session_trains_all_of_them(trainings, tmp_path):
    found = carried_out(trainings, training(tmp_path, "a"), training(tmp_path, "b"))
    assert FakeSession.calls == ["open", "a", "b", "close"]
    assert [trained.checkpoint for trained in found] == [
        str(tmp_path / name / "checkpoints" / "global_step_1" / "actor" / "huggingface") for name in "ab"
    ]
    assert found[0].steps == [{"step": 1, "rollout/reward/mean": 0.5, "rollout/success": 1}]
    assert [line.strip().split("  reward")[0] for line in trainings.shown] == ["step    1", "step    1"]


@pytest.mark.thorough
def test_each_has_its_own_logs(trainings, tmp_path):
    carried_out(trainings, training(tmp_path, "a"), training(tmp_path, "b"))
    assert "a is trained" in (tmp_path / "a" / "logs" / "driver.log").read_text()
    assert "a is trained" not in (tmp_path / "b" / "logs" / "driver.log").read_text()
    assert "verl says much" in (tmp_path / "a" / "logs" / "main.log").read_text()


@pytest.mark.thorough
def test_a_finished_training_starts_nothing(trainings, tmp_path):
    carried_out(trainings, training(tmp_path, "a"))
    FakeSession.calls.clear()
    again = SessionTrainings(trainings._config)
    assert carried_out(again, training(tmp_path, "a")) and FakeSession.calls == []


@pytest.mark.thorough
def test_what_a_session_cannot_change_opens_another_one(trainings, tmp_path):
    other = training(tmp_path, "b", **{"actor_rollout_ref.rollout.max_model_len": 580})
    carried_out(trainings, training(tmp_path, "a"), other)
    assert FakeSession.calls == ["open", "a", "b", "close", "open", "b", "close"]


@pytest.mark.thorough
def test_a_training_that_fails_says_whose_it_is_and_closes_what_is_lost(trainings, tmp_path):
    FakeSession.fails = {"a": TrainingFailed("a worker was killed")}

    async def run():
        with pytest.raises(TrainingFailed, match=r"^a: a worker was killed \(log: .*main\.log\)$"):
            await trainings.train(training(tmp_path, "a"), lambda phase, step: None)
        assert FakeSession.calls == ["open", "a", "close"]
        await trainings.train(training(tmp_path, "b"), lambda phase, step: None)
        assert FakeSession.calls == ["open", "a", "close", "open", "b"]
        await trainings.close()

    asyncio.run(run())


@pytest.mark.thorough
def test_a_refused_training_leaves_the_session(trainings, tmp_path):
    FakeSession.fails = {"a": ConfigError("verl: no")}
    with pytest.raises(ConfigError, match=r"^a: verl: no$"):
        carried_out(trainings, training(tmp_path, "a"))
    assert FakeSession.calls == ["open", "a", "close"]
