"""Proposals that attack, from their text to where their program would make a label, against the real environments.

Those that a check of words does not name are contained where they run: the service goes on, and no label is made.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentevolver.recipes.agent0.execute import execute
from agentevolver.recipes.agent0.types import DroppedProposal, ProposedTask
from env_service.client import AsyncEnvClient
from env_service.registry import resolve
from tests.env_service.local_hosts import serving

pytestmark = pytest.mark.service

SEED = "python.counting.search.2.00003"


def written(program: str) -> str:
    question = "<question>How many ways are there?</question>"
    return f"{question}\n<program>\n{program}\n</program>\n\\boxed{{7}}"


async def proposal_of(client: AsyncEnvClient, seed: str, text: str) -> ProposedTask:
    made = await client.create_instance("propose", seed)
    instance = made["info"]["instance_id"]
    await client.step(instance, {"role": "assistant", "content": text})
    state: Any = await client.get_tools_info(instance, params={"what": "state"})
    await client.release_instance(instance)
    return ProposedTask.from_facts("r1.1", seed, state["facts"])


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("while True: pass", "timeout"),
        ("while True: print('x' * 100_000)", "unexecutable"),
        ("print(len([0] * 10 ** 11))", "unexecutable"),
        ("print(eval('op' + 'en')('/etc/passwd').read())", "unexecutable"),
        ("exec('imp' + 'ort os; print(os.fork())')", "unexecutable"),
        ("import random\nprint(random.random())", "unequal"),
        ("import time\nprint(time.time_ns())", "unequal"),
        ("def f(): return f()\nf()", "unexecutable"),
        ("raise SystemExit(0)", "unexecutable"),
        ("print(7)\nexit('no')", "unexecutable"),
        ("x = 7", "unexecutable"),
        ("print(", "unexecutable"),
    ],
)
async def test_a_program_that_harms_or_draws_lots_makes_no_label(
    program: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENV_PYTHON_WALL_S", "2")
    worlds = resolve(["propose", "python"])
    async with serving(worlds) as running, AsyncEnvClient(running.url) as client:
        proposal = await proposal_of(client, SEED, written(program))
        assert (proposal.refused, proposal.program) == ("", program)
        begin = time.monotonic()
        dropped = await execute(client, "python", proposal)
        assert isinstance(dropped, DroppedProposal) and dropped.reason == reason, dropped
        assert time.monotonic() - begin < 30
        honest = await proposal_of(client, SEED, written("import sys\nprint(3 + 4)\nsys.exit()"))
        assert await execute(client, "python", honest) == "7", "the service goes on"
        assert not running.service.instances


async def test_in_calc_a_question_is_run_and_nothing_else() -> None:
    worlds = resolve(["propose", "calc"])
    async with serving(worlds) as running, AsyncEnvClient(running.url) as client:
        honest = await proposal_of(client, "calc.left.3.f.00017", "<question>left 3 f 4 g 7</question>")
        assert await execute(client, "calc", honest) in set("0123456789")
        for program in ("while True: pass", "left 3 f 4\nrun left 3 f 4", "left " + "3 f " * 100_000 + "4"):
            forged = ProposedTask("r1.2", "calc.left.3.f.00017", question=program, program=program)
            dropped = await execute(client, "calc", forged)
            assert isinstance(dropped, DroppedProposal) and dropped.reason == "unexecutable"
        assert not running.service.instances
