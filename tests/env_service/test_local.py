"""Environments in this process: the methods of the client, its errors, and no instance left."""

from __future__ import annotations

import pytest
from local_hosts import say

from env_service.client import EnvCrashed, EnvRequestError
from env_service.local import LocalClient, is_shared
from env_service.registry import RegistryError

COUNTER = ["counter=counter_envs:Counter"]


async def test_errors_are_those_of_the_client() -> None:
    client = LocalClient(["counter"], COUNTER)
    with pytest.raises(EnvRequestError, match="nope"):
        await client.get_env_profile("counter", "nope")
    with pytest.raises(EnvRequestError, match="is not served; there are counter"):
        await client.create_instance("moon", "x")
    with pytest.raises(EnvRequestError, match="no such instance"):
        await client.step("nobody", say(1))
    await client.create_instance("counter", "t0", "one")
    with pytest.raises(EnvCrashed, match="KeyError: 'secret-detail'"):
        await client.step("one", say("!raise"))
    await client.close()
    assert not await client.release_instance("one")


def test_what_runs_an_agents_code_is_not_shared() -> None:
    assert is_shared("counter", COUNTER) and not is_shared("lonely", ["lonely=counter_envs:LonelyCounter"])
    with pytest.raises(RegistryError, match="did you mean 'counter'"):
        is_shared("conter", COUNTER)
