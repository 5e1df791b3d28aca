"""Executes a solution in a fresh instance of its world."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from agentevolver.utils.names import system_name
from agentevolver.utils.openings import Opening
from env_service.protocol import EnvServiceError, Instances
from task_manager.actions import PlainFormat, read_state
from task_manager.state import StateChange, StateCheck, WorldState, difference

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SeedWorld:
    """The start state of a seed task, without its goal."""

    env_type: str
    seed_task_id: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Execution:
    """Result of executing actions, up to the first one that is refused or ends the episode."""

    opening: Opening
    actions: list[str] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)  # (index, reason)
    finished: bool = False
    left_over: int = 0  # number of actions after the end of the episode
    # Whether the environment confirms each action. If not, it may have refused some without saying so.
    confirmed: bool = True
    answer: str | None = None
    before: WorldState | None = None
    after: WorldState | None = None

    @property
    def changes(self) -> list[StateChange] | None:
        if self.before is None or self.after is None:
            return None
        return difference(self.before.facts, self.after.facts)

    @property
    def check(self) -> StateCheck | None:
        """State check for a task; None if the states do not determine one."""
        if self.before is None or self.after is None or not self.after.exact:
            return None
        check = StateCheck.of(self.before, self.after)
        return check if check.decides else None


@asynccontextmanager
async def open_world(client: Instances, world: SeedWorld, params: dict[str, Any]) -> AsyncIterator[tuple[str, Opening]]:
    """Create an instance without a goal; yields its id and opening, and releases it."""
    instance_id = f"{system_name(world.seed_task_id)}-q-{uuid4().hex}"
    try:
        made = await client.create_instance(
            world.env_type, world.seed_task_id, instance_id, {**world.params, **params, "is_open_query": True}
        )
        yield instance_id, Opening.of(made)
    finally:
        try:
            # A cancelled pipeline must still release its instances.
            await asyncio.shield(client.release_instance(instance_id))
        except EnvServiceError as error:
            logger.warning("instance %s could not be released, the service will expire it: %s", instance_id, error)


async def execute(client: Instances, world: SeedWorld, fmt: PlainFormat, actions: Sequence[str]) -> Execution:
    async with open_world(client, world, fmt.replay_params(len(actions))) as (instance_id, opening):
        done = Execution(opening, before=await read_state(client, instance_id))
        for index, action in enumerate(actions):
            result = await client.step(instance_id, {"role": "assistant", "content": action}, step_index=index)
            done.actions.append(action)
            done.observations.append("\n".join(str(message["content"]) for message in result["state"]))
            done.confirmed = done.confirmed and fmt.tells(result)
            if result["info"].get("answer") is not None:
                done.answer = str(result["info"]["answer"])
            if (why := fmt.refusal(result)) is not None:
                done.refusals.append((index, why))
            if result["is_terminated"]:
                done.finished = fmt.finished(result)
                left = [action.strip() for action in actions[index + 1 :]]
                # If the world itself ended the episode, a closing action left over is harmless.
                done.left_over = 0 if left == [fmt.closing(None)] else len(left)
                break
            if why is not None:
                break
        done.after = await read_state(client, instance_id)
        if done.after is not None and done.actions and done.actions[-1].strip() == fmt.closing(None):
            # The plain closing action gives no answer, whatever its text.
            done.after, done.answer = replace(done.after, answer=None, prose=False), None
        elif done.after is not None and done.after.answer is not None:
            done.answer = done.after.answer
        return done
