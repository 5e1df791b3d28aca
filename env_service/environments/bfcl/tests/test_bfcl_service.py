"""The same 800 tasks over HTTP: replayed through a real service, several episodes at a time in one host process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from ray_service import served_alone

from env_service.client import EnvClient, EnvRequestError
from env_service.environments.bfcl.prompts import COMPLETED
from env_service.environments.bfcl.tests.replay import ANSWER, Turns, all_task_ids, as_text, reference_turns

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def client() -> Iterator[EnvClient]:
    with served_alone("bfcl") as ready:
        yield ready


def right(task_id: str) -> Turns:
    """Return the reference calls."""
    return reference_turns(task_id)


def empty(task_id: str) -> Turns:
    """Return no call in any turn."""
    return [[] for _ in reference_turns(task_id)]


def wrong(task_id: str) -> Turns:
    """Return the reference calls but for the last one."""
    turns = reference_turns(task_id)
    next(calls for calls in reversed(turns) if calls).pop()
    return turns


def replay(client: EnvClient, task_id: str, turns: Turns) -> tuple[float, float, bool]:
    """Play a task turn by turn; return the sparse and the dense score and whether the end marker came."""
    opening = client.create_instance("bfcl", task_id, params={"is_open_query": False})
    instance_id = opening["info"]["instance_id"]
    try:
        answer = None
        for calls in turns:
            if calls:
                client.step(instance_id, as_text(calls))
            answer = client.step(instance_id, ANSWER)
        ended = answer is not None and answer["is_terminated"] and answer["state"][0]["content"] == COMPLETED
        sparse = client.evaluate(instance_id, [], {"sparse": True})
        dense = client.evaluate(instance_id, [], {"sparse": False})
        return sparse, dense, ended
    finally:
        assert client.release_instance(instance_id)


@pytest.mark.parametrize(("solution", "score"), [(right, 1.0), (empty, 0.0), (wrong, 0.0)])
def test_all_800_tasks_replayed_over_http(client: EnvClient, solution: Callable[[str], Turns], score: float) -> None:
    ids = client.get_env_profile("bfcl", "full")
    assert ids == all_task_ids() and len(ids) == 800
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda task_id: replay(client, task_id, solution(task_id)), ids))
    assert {
        task_id: result for task_id, result in zip(ids, results, strict=True) if (result[0], result[2]) != (score, True)
    } == {}
    dense = [result[1] for result in results]
    assert set(dense) == {score} if solution is not wrong else 0.0 < sum(dense) / len(dense) < max(dense) < 1.0


def test_splits_and_categories_are_reachable_over_http(client: EnvClient) -> None:
    assert len(client.get_env_profile("bfcl", "test", {"categories": ["miss_func"]})) == 60
    assert client.get_env_profile("bfcl", "dev") == client.get_env_profile("bfcl", "val")
    with pytest.raises(EnvRequestError, match="unknown split 'tset'; bfcl has: train, val, test, full"):
        client.get_env_profile("bfcl", "tset")


def test_what_a_caller_does_wrong_is_a_400_with_the_reason(client: EnvClient) -> None:
    with pytest.raises(EnvRequestError, match="no BFCL multi-turn task"):
        client.create_instance("bfcl", "multi_turn_base_999")
    with pytest.raises(EnvRequestError, match="unknown parameter `bfcl_root`"):
        client.create_instance("bfcl", "multi_turn_base_0", params={"bfcl_root": "x"})


def test_odd_texts_and_numbers_of_a_model_survive_the_way_over_http(client: EnvClient) -> None:
    instance_id = client.create_instance("bfcl", "multi_turn_base_0")["info"]["instance_id"]
    calls = [
        '{"name": "touch", "arguments": {"file_name": "\\ud83d"}}',
        '{"name": "touch", "arguments": {"file_name": "n"}}',
        '{"name": "echo", "arguments": {"content": 123456789012345678901234567890, "file_name": "n"}}',
        '{"name": "\\udfff", "arguments": {}}',
    ]
    text = "".join(f"<tool_call>{call}</tool_call>" for call in calls)
    answer = client.step(instance_id, {"role": "assistant", "content": text})
    assert answer["info"]["calls"] == 4
    state = client.get_tools_info(instance_id, params={"what": "state"})["facts"]
    assert (
        json.loads(json.dumps(state))["GorillaFileSystem"]["root"]["contents"]["n"]["content"]
        == "123456789012345678901234567890"
    )
    client.release_instance(instance_id)
