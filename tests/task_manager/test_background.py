"""Rounds in the background: new tasks beside the old ones, and a round that fails disturbs nobody."""

import asyncio
import time

import pytest
from local_hosts import serving
from questioning_fakes import LocalPocket, all_synthetic_tasks

from task_manager.background import BackgroundQuestioning
from task_manager.profile import shipped_profile
from task_manager.settings import QuestioningConfiguration
from task_manager.tasks import write_objectives
from task_manager.verify import recheck_tasks
from tests.llm.hostile_server import HostileServer
from tests.llm.temperaments import read_temper

POCKET = {"pocket": "env_service.environments.pocket.env:PocketEnv"}


def configuration_of(tmp_path, env_url, model=None):
    fields = {
        "n": 1,
        "max_seed_tasks": 4,
        "train_data_path": str(tmp_path / "t.jsonl"),
        "curriculum": {"enable": True, "synthesize_every_epochs": 2},
    }
    tree = {
        "env_service": {"env_url": env_url},
        "data": {"val_filter": {"n": 24}},
        "task_manager": fields,
        "llm": {"base_url": model.url, "model": "m", "api_key_env": None} if model else {},
    }
    return QuestioningConfiguration.model_validate(tree)


async def collected(background):
    deadline = time.monotonic() + 120
    while (tasks := background.collect()) is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    return tasks


@pytest.mark.recipe("offline")
@pytest.mark.service
async def test_rounds_make_new_tasks_that_hold_with_new_ids_whatever_the_endpoint_does(tmp_path):
    async with (
        serving(POCKET) as service,
        HostileServer(temper=read_temper("mild+outages=0.03+cut=0.03")).serve() as model,
    ):
        configuration = configuration_of(tmp_path, service.url, model)
        background = BackgroundQuestioning(configuration, tmp_path / "rounds")
        everything = []
        for _ in range(2):
            background.start(shipped_profile("pocket").task_preference.shifted(-1))
            assert background.is_running and not background.is_due(2)
            with pytest.raises(RuntimeError, match="is running"):
                background.start()
            tasks = await collected(background)
            assert len(tasks) >= 5
            everything += tasks
    assert all_synthetic_tasks(tmp_path / "t.jsonl") == everything
    assert len({task.task_id for task in everything}) == len({task.query for task in everything}) == len(everything)
    assert all(finding.flaw is None for finding in await recheck_tasks(LocalPocket(), everything, {}, 4))


@pytest.mark.service
async def test_a_round_that_fails_leaves_no_tasks_and_no_file(tmp_path, caplog):
    write_objectives(tmp_path / "t.jsonl", [])
    background = BackgroundQuestioning(configuration_of(tmp_path, "http://127.0.0.1:9"), tmp_path / "rounds")
    background.start()
    assert await collected(background) == []
    assert "exit code 1" in caplog.text and "nobody answers" not in caplog.text
    assert all_synthetic_tasks(tmp_path / "t.jsonl") == [] and not list(tmp_path.glob("t.jsonl.round*"))
    assert "error: " in (tmp_path / "rounds" / "round1.log").read_text()
