"""The hostile server does what its temper says, as often as it says, and the same way each time; its minds are right
about their worlds."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

from agentevolver.llm.prompts import messages, transcript
from agentevolver.utils.openings import Opening
from tests.agentevolver.llm.faulty_server import Request
from tests.llm.hostile_server import HostileServer
from tests.llm.minds import WORLDS, Minds
from tests.llm.temperaments import TEMPERS, Temper

OPENING = "You solve problems with the help of a Python interpreter."


def asked(number: int = 0, text: str = OPENING) -> dict[str, Any]:
    """A request for the next action in the python world."""
    prompt = messages(
        "verifier/solve", 'Reply with JSON: {"thought": "", "action": ""}', {"opening": text, "task": _sum(number)}
    )
    return {"model": "m", "messages": prompt, "max_tokens": 100}


def _sum(number: int) -> str:
    return f"What is the sum of the squares of the whole numbers from 1 to {number + 5}?"


def played(temper: Temper, count: int = 400, **options: Any) -> tuple[HostileServer, list[Any]]:
    """The server and what it did to so many different requests."""
    server = HostileServer(temper, **options)
    return server, [server.answer(Request({}, asked(number))) for number in range(count)]


def message_of(said: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said.body)["choices"][0]
    return found


@pytest.mark.parametrize("name", ["fences", "prose", "thinking", "cut", "refusals", "tools", "shapes"])
def test_a_way_is_taken_as_often_as_the_temper_says(name: str) -> None:
    temper = Temper(**{name: 0.3})
    server, _ = played(temper, 800, seed=1)
    share = getattr(temper, name) * (1 - temper.exhausted)
    assert server.counts[f"way {name}"] / 800 == pytest.approx(share, abs=0.06)
    assert server.counts["answered"] == 800


@pytest.mark.parametrize("retry_after", [False, True])
def test_a_window_takes_so_many_requests_and_no_more(retry_after: bool) -> None:
    server, said = played(Temper(requests=7, window_s=60, retry_after=retry_after), 20)
    assert [one.status for one in said] == [200] * 7 + [429] * 13
    assert all(("retry-after" in one.headers) == retry_after for one in said[7:])
    server._window.clear()  # a minute later
    assert server.answer(Request({}, asked(0))).status == 200


def test_a_content_filter_takes_some_prompts_always_and_some_replies_once() -> None:
    server, first = played(Temper(filtered=0.3))
    again = [server.answer(Request({}, asked(number))) for number in range(400)]
    refused = [number for number, said in enumerate(first) if said.status == 400]
    assert 30 < len(refused) < 90 and all(again[number].status == 400 for number in refused)
    assert b"content_filter" in first[refused[0]].body
    withheld = [
        n
        for n, said in enumerate(first)
        if said.status == 200 and message_of(said)["finish_reason"] == "content_filter"
    ]
    assert 30 < len(withheld) < 90
    answered = [n for n in withheld if again[n].status == 200 and message_of(again[n])["finish_reason"] == "stop"]
    assert len(answered) > 0.6 * len(withheld)


def test_the_same_seed_does_the_same_and_another_does_not() -> None:
    bodies = [[_stable(said) for said in played(TEMPERS["mild"], 100, seed=seed)[1]] for seed in (1, 1, 2)]
    assert bodies[0] == bodies[1] != bodies[2]


def _stable(said: Any) -> Any:
    if not said.body or not said.body.startswith(b'{"id"'):
        return said.status, said.manner, said.body
    return message_of(said)


async def test_it_is_served_over_http_with_a_key() -> None:
    async with HostileServer(key="sk-x").serve() as transport, httpx.AsyncClient(trust_env=False) as client:
        url = f"{transport.url}/chat/completions"
        assert (await client.post(url, json=asked(0))).status_code == 401
        reply = await client.post(url, json=asked(0), headers={"authorization": "Bearer sk-x"})
        action = json.loads(reply.json()["choices"][0]["message"]["content"])["action"]
        assert action == "```python\nprint(sum(i * i for i in range(1, 5 + 1)))\n```"
        counts = (await client.get(f"{transport.url}/counts")).json()
        assert counts["answered"] == counts["verifier/solve of m"] == 1


def tried(env_class: Any, seed_task: str, steps: int, *, wrong: float) -> list[tuple[bool, bool, dict[str, Any]]]:
    """Explore a world by the mind and have tasks made of it; each with whether it is right, whether the judge says so,
    and itself."""
    minds, world = (
        Minds(wrong=wrong),
        next(world for world in WORLDS if env_class.__module__.split(".")[2].startswith(world.env_type)),
    )
    opening, env = opened(env_class, seed_task)
    walked: list[tuple[int, str, str]] = []
    for number in range(steps):
        prompt = messages("explorer/act", '{"action": ""}', {"opening": opening, "transcript": transcript(walked)})
        action = minds.answer(prompt, random.Random(f"{seed_task}-{number}")).answer["action"]
        result = env.step({"role": "assistant", "content": action})
        walked.append((number, action, result["state"][0]["content"]))
        if result["is_terminated"]:
            break
    env.close()
    prompt = messages("synthesiser/tasks", "", {"opening": opening, "transcript": transcript(walked), "count": "8"})
    made = minds.answer(prompt, random.Random(seed_task)).answer["tasks"]
    return [
        (world.right(seed_task, t["query"], t["solution"]), accepted(minds, env_class, seed_task, t), t) for t in made
    ]


def opened(env_class: Any, seed_task: str) -> tuple[str, Any]:
    env = env_class(seed_task, "mind", {"is_open_query": True})
    return Opening.of(env.get_init_state()).context, env


def accepted(minds: Minds, env_class: Any, seed_task: str, task: dict[str, Any]) -> bool:
    opening, env = opened(env_class, seed_task)
    done = []
    for number, action in enumerate(task["solution"]):
        result = env.step({"role": "assistant", "content": action})
        done.append((number, action, result["state"][0]["content"]))
        if result["is_terminated"]:
            break
    env.close()
    prompt = messages("judge/accept", "", {"opening": opening, "task": task["query"], "transcript": transcript(done)})
    verdict: bool = minds.answer(prompt, random.Random(0)).answer["accepted"]
    return verdict


def bfcl_seeds() -> tuple[Any, list[str]]:
    pytest.importorskip("bfcl_eval")
    from env_service.environments.bfcl.env import BfclEnv

    return BfclEnv, BfclEnv.get_query_list("train", {"categories": ["multi_turn_base"]})[::10]


def gymnasium_seeds() -> tuple[Any, list[str]]:
    pytest.importorskip("gymnasium")
    from env_service.environments.gymnasium.env import GymnasiumEnv

    ids = GymnasiumEnv.get_query_list("train")
    return GymnasiumEnv, [*ids[:6], *ids[-6:]]


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", [bfcl_seeds, gymnasium_seeds])
def test_minds_make_right_tasks_but_for_those_that_are_wrong_on_purpose(seeds: Any) -> None:
    env_class, ids = seeds()
    tasks = [task for seed in ids for task in tried(env_class, seed, 10, wrong=0.0)]
    assert len(tasks) >= 30 and len({task["query"] for _, _, task in tasks}) >= 20
    assert all(is_right is is_accepted for is_right, is_accepted, _ in tasks)
    # BFCL has a world in which only the second contact can be added.
    assert sum(is_right for is_right, _, _ in tasks) >= 0.95 * len(tasks)


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", [bfcl_seeds, gymnasium_seeds])
def test_the_judge_takes_none_of_the_wrong_ones(seeds: Any) -> None:
    env_class, ids = seeds()
    tasks = [task for seed in ids for task in tried(env_class, seed, 10, wrong=1.0)]
    assert len(tasks) >= 20 and not any(is_right or is_accepted for is_right, is_accepted, _ in tasks)
