"""The gymnasium worlds over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ray_service import served_alone

from env_service.client import EnvClient
from env_service.environments.gymnasium.env import GymnasiumEnv

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def client() -> Iterator[EnvClient]:
    with served_alone("gymnasium") as ready:
        yield ready


def test_listed_tasks_are_solved_over_http(client: EnvClient) -> None:
    ids = client.get_env_profile("gymnasium", "val")
    assert ids == GymnasiumEnv.get_query_list("val")
    for task_id in ids[::4]:
        local = GymnasiumEnv(task_id, "plan")
        instance_id = client.create_instance("gymnasium", task_id, params={"is_open_query": False})["info"][
            "instance_id"
        ]
        for action in local._world.plan(local._env) or []:
            answer = client.step(instance_id, {"role": "assistant", "content": f"action: {action}"})
        assert answer["is_terminated"]
        assert client.evaluate(instance_id, [], {"sparse": True}) == 1.0
        assert client.release_instance(instance_id)
