"""Runs a proposal's program twice in its world; the result is its answer, or the reason why there is none.

The world limits time, memory and output. Each run has a fresh instance. Two different answers mean that the program is
random or reads the clock, and count as none. If the interpreter or instance is lost, the run is repeated.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any
from uuid import uuid4

import orjson

from agentevolver.recipes.agent0.types import DroppedProposal, ProposedTask
from env_service.client import EnvCrashed, EnvRequestError, EnvServiceError, EnvTimeout
from env_service.environments.python_tool.prompts import NO_OUTPUT
from env_service.protocol import Instances

logger = logging.getLogger(__name__)

# Lost runs after which the program, or the environment, is to blame.
TRIES = 3
# Longer than any answer that is compared.
LONGEST_ANSWER = 2000
# The python world's line for a program that calls `exit()`; it is not output.
_LEFT = re.compile(r"SystemExit: (.*) \(the interpreter goes on\)")


async def execute(client: Instances, world: str, proposal: ProposedTask) -> str | DroppedProposal:
    """Return the answer that two runs of the program agree on. Otherwise return the reason: `unexecutable` (no program,
    an error, no output), `timeout`, or `unequal`.

    Raises EnvServiceError if the environment service failed, which says nothing about the program.
    """
    if not proposal.program:
        return DroppedProposal("unexecutable", "the proposal has no program")
    first = await _run(client, world, proposal.program)
    if isinstance(first, DroppedProposal):
        return first
    second = await _run(client, world, proposal.program)
    if isinstance(second, DroppedProposal):
        return second
    if first != second:
        return DroppedProposal("unequal", f"one run answered {first[:80]!r}, the next {second[:80]!r}")
    return first


async def _run(client: Instances, world: str, program: str) -> str | DroppedProposal:
    for attempt in range(1, TRIES + 1):
        try:
            result = await _once(client, world, program)
        except EnvTimeout as error:
            return DroppedProposal("timeout", str(error))
        except EnvRequestError as error:
            return DroppedProposal("unexecutable", str(error))
        except EnvCrashed as error:
            if attempt == TRIES:
                raise
            logger.warning("the instance of a program was lost; the program is run again: %s", error)
            continue
        if (result.get("info") or {}).get("status") != "died":
            break
        logger.info("a program's interpreter was lost in try %d", attempt)
    return _answer(result)


async def _once(client: Instances, world: str, program: str) -> Any:
    instance_id = f"reference-{uuid4().hex}"
    in_python = world == "python"
    params: dict[str, Any] = {"problem": {"question": "reference"}} if in_python else {"reference": True}
    await client.create_instance(world, "reference", instance_id, params)
    try:
        return await client.step(instance_id, _call(program) if in_python else _message(program), step_index=0)
    finally:
        await asyncio.shield(_release(client, instance_id))


async def _release(client: Instances, instance_id: str) -> None:
    try:
        await client.release_instance(instance_id)
    except EnvServiceError:
        return  # the service lets go of it by itself


def _message(program: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"run {program}"}


def _call(program: str) -> dict[str, Any]:
    """Return code as a structured call, which no fence within the code can end."""
    function = {"name": "python", "arguments": orjson.dumps({"code": program}).decode()}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def _answer(result: Any) -> str | DroppedProposal:
    info, said = result.get("info") or {}, str(result["state"][-1]["content"]).strip()
    if info.get("status") == "timeout":
        return DroppedProposal("timeout", said[-200:])
    if info.get("refused") or said.startswith("err "):
        return DroppedProposal("unexecutable", said[-200:])
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if lines and (left := _LEFT.fullmatch(lines[-1])):
        if left[1] not in ("0", "None"):
            return DroppedProposal("unexecutable", lines[-1])
        lines.pop()
    if not lines or said == NO_OUTPUT:
        return DroppedProposal("unexecutable", "the program printed nothing")
    if len(lines[-1]) > LONGEST_ANSWER:
        return DroppedProposal("unexecutable", f"its last line has more than {LONGEST_ANSWER} characters")
    return lines[-1]
