"""Putting a run together: evaluation queries, files that belong to another run, services that do not come up."""

import json
from contextlib import ExitStack

import pytest
from questioning_fakes import Desk, LocalDesk, Tutor

from agentevolver.llm.embeddings import HashingEncoder
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError
from agentevolver.utils.health import ServiceIdentity
from env_service.environments.pocket.action_format import PocketFormat as PocketFormat
from task_manager import services, synthetic_tasks
from task_manager.journal import PipelineJournal
from task_manager.known_queries import held_out_queries
from task_manager.pipeline import QuestioningFailed
from task_manager.settings import QuestioningConfiguration, TaskManagerSettings
from task_manager.synthetic_tasks import existing_tasks, open_run
from task_manager.tasks import write_objectives


async def test_evaluation_queries_are_read_once_and_kept(tmp_path):
    client = LocalDesk()
    with PipelineJournal(tmp_path) as journal:
        queries = await held_out_queries(client, "pocket", ["dev", "test"], journal, list_params={"n": 6})
        assert not client.open and client.counts["/create"] == 12
        again = await held_out_queries(client, "pocket", ["dev", "test"], journal, list_params={"n": 6})
        assert again == queries and client.counts["/create"] == 12
    ids = [task_id for split in ("dev", "test") for task_id in await client.get_env_profile("pocket", split, {"n": 6})]
    assert queries == tuple(dict.fromkeys(Desk.query_of(task_id) for task_id in ids))


def configuration_of(tmp_path, **section):
    fields = {"n": 1, "max_seed_tasks": 3, "train_data_path": str(tmp_path / "t.jsonl"), **section}
    tree = {"env_service": {"env_type": "pocket"}, "data": {"val_filter": {"n": 6}}, "task_manager": fields}
    return QuestioningConfiguration.model_validate(tree)


@pytest.fixture
def local(monkeypatch):
    client = LocalDesk()
    monkeypatch.setattr(synthetic_tasks, "AsyncEnvClient", lambda *args, **kwargs: client)
    return client


@pytest.mark.thorough
async def test_tasks_of_another_configuration_are_not_taken_for_this_ones(tmp_path, local):
    configuration = configuration_of(tmp_path)
    assert existing_tasks(configuration) == []
    async with open_run(configuration, Tutor(), encoder=HashingEncoder()) as run:
        tasks = await run.make_tasks()
        assert existing_tasks(configuration, run.plan) == tasks
    other = configuration_of(tmp_path, synthesis={"temperature": 0.5})
    async with open_run(other, Tutor(), encoder=HashingEncoder()) as run:
        with pytest.raises(ConfigError, match="made by another configuration"):
            existing_tasks(other, run.plan)
    write_objectives(tmp_path / "t.jsonl", [Task("a#0", "bfcl", True, "q", "x", "llm", {"seed_task_id": "a"})])
    with pytest.raises(ConfigError, match="are for 'bfcl', not 'pocket'"):
        existing_tasks(configuration)


@pytest.mark.thorough
async def test_known_tasks_are_not_made_again_and_ids_go_on(tmp_path, local):
    configuration = configuration_of(tmp_path)
    async with open_run(configuration, Tutor(), encoder=HashingEncoder()) as run:
        first = await run.make_tasks()
    write_objectives(tmp_path / "known.jsonl", first[:3])
    section = {"known_data_paths": [str(tmp_path / "known.jsonl")], "store": str(tmp_path / "again")}
    async with open_run(configuration_of(tmp_path, **section), Tutor(), encoder=HashingEncoder()) as run:
        rest = await run.make_tasks()
    assert {task.query for task in rest} == {task.query for task in first[3:]}
    assert not {task.task_id for task in rest} & {task.task_id for task in first[:3]}


async def test_what_was_kept_is_written_also_when_the_run_is_broken_off(tmp_path, local, monkeypatch):
    monkeypatch.setattr(TaskManagerSettings, "unavailable_timeout_s", 0.0)

    class Leaving(Tutor):
        async def _said(self, role, messages, sampling):
            local.is_up = local.is_up and len(self.prompts) < 14
            return await super()._said(role, messages, sampling)

    configuration = configuration_of(
        tmp_path, num_explore_threads=1, strategy_args={"breadth_steps": 3, "depth_steps": 0}
    )
    async with open_run(configuration, Leaving(), encoder=HashingEncoder()) as run:
        with pytest.raises(QuestioningFailed, match="is unreachable"):
            await run.make_tasks()
    kept = existing_tasks(configuration)
    assert kept and all(json.dumps(task.to_dict()) for task in kept)


@pytest.mark.parametrize("external", [False, True])
def test_a_service_that_is_there_already_is_used_where_the_configuration_says_so(external, tmp_path, monkeypatch):
    identity = ServiceIdentity("agentevolver environment service", "0.1.0", "another", ("pocket",))
    monkeypatch.setattr(services, "_ask", lambda url: (True, identity))
    tree = {"env_service": {"env_type": "pocket", "external": external}, "llm": {"base_url": "http://127.0.0.1:9/v1"}}
    with ExitStack() as stack:
        if not external:
            stack.enter_context(
                pytest.raises(
                    services.ServiceFailed, match=r"of pocket, started by launch another: choose another port"
                )
            )
        stack.enter_context(services.running(QuestioningConfiguration.model_validate(tree), tmp_path))
        assert external
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_does_not_come_up_is_named_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(services, "START_TIMEOUT_S", 20)
    tree = {
        "env_service": {"env_type": "no_such_world", "env_url": "http://127.0.0.1:9"},
        "llm": {"base_url": "http://127.0.0.1:9/v1"},
    }
    with (
        pytest.raises(services.ServiceFailed, match=r"(?s)env_service did not answer .*no_such_world"),
        services.running(QuestioningConfiguration.model_validate(tree), tmp_path),
    ):
        pytest.fail("it runs")
