"""Environments in this process: the methods of the client, its errors, and no instance left."""

from __future__ import annotations

import asyncio

import pytest

from env_service.client import EnvCrashed, EnvRequestError
from env_service.environments.pocket.env import PocketEnv
from env_service.local import LocalClient, is_shared
from env_service.registry import RegistryError

CRASHING = "crashing=tests.env_service.test_local:Crashing"


class Crashing(PocketEnv):
    """Breaks when it is stepped."""

    def step(self, *arguments: object, **options: object) -> object:
        raise RuntimeError("broken inside")


async def test_an_episode_as_over_http() -> None:
    client = LocalClient(["pocket"])
    tasks = await client.get_env_profile("pocket", "dev", {"n": 3})
    assert len(tasks) == 3 and await client.health()
    state = await client.create_instance("pocket", "note_add.k1.50000", "one")
    assert state["info"]["instance_id"] == "one" and state["state"][1]["content"].startswith("add note")
    result = await client.step("one", {"role": "assistant", "content": "note.add mug fun"}, step_index=0)
    assert result["state"][0]["content"] == "ok n2" and not result["is_terminated"]
    assert (await client.step("one", {"role": "assistant", "content": "done"}))["is_terminated"]
    assert await client.evaluate("one", [], {"sparse": True}) == 1.0
    assert "facts" in await client.get_tools_info("one", params={"what": "state"})
    assert await client.release_instance("one") and not await client.release_instance("one")


async def test_many_instances_at_once_do_not_mix() -> None:
    client = LocalClient(["pocket"])

    async def play(number: int) -> float:
        name = str(number)
        await client.create_instance("pocket", "note_add.k1.50000", name)
        words = "note.add mug fun" if number % 2 else "note.add cup fun"
        for text in (words, "done"):
            await client.step(name, {"role": "assistant", "content": text})
        return await client.evaluate(name)

    assert await asyncio.gather(*map(play, range(20))) == [float(number % 2) for number in range(20)]
    await client.close()
    assert not await client.release_instance("0")


async def test_errors_are_those_of_the_client() -> None:
    client = LocalClient(["pocket", "crashing"], [CRASHING])
    with pytest.raises(EnvRequestError, match="nope"):
        await client.get_env_profile("pocket", "nope")
    with pytest.raises(EnvRequestError, match="is not served; there are pocket, crashing"):
        await client.create_instance("calc", "x")
    with pytest.raises(EnvRequestError, match="no such instance"):
        await client.step("nobody", {"role": "assistant", "content": "done"})
    await client.create_instance("crashing", "note_add.k1.50000", "one")
    with pytest.raises(EnvRequestError):
        await client.step("one", "no message")
    with pytest.raises(EnvCrashed, match="RuntimeError: broken inside"):
        await client.step("one", {"role": "assistant", "content": "done"})
    await client.close()


def test_what_runs_an_agents_code_is_not_shared() -> None:
    assert is_shared("pocket") and not is_shared("python")
    with pytest.raises(RegistryError, match="did you mean 'pocket'"):
        is_shared("poket")
