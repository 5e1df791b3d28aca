"""Exploration: an explorer takes steps in a world without a goal, first broadly, then deeply (paper, 2.2, equations 8 and 9).

In the breadth phase the explorer sees every step so far; in the depth phase only the last `window` ones, so that it goes on from where it
is instead of from where it began. An exploration that ends early because the environment ended the episode, or because the
explorer said nothing usable any more, counts. One in which the
environment or the model failed raises what failed (`EnvServiceError`, `LLMError`) and leaves no record.
"""

from __future__ import annotations

import logging
import time
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentevolver.llm.errors import LLMReplyError
from agentevolver.llm.settings import Role
from task_manager import prompts
from task_manager.execution import World, WorldClient, open_world
from task_manager.formats import PlainFormat
from task_manager.models import ActReply, LanguageModel
from task_manager.profile import EnvProfile
from task_manager.settings import StrategySettings
from task_manager.strategies import Strategy

logger = logging.getLogger(__name__)

Phase = Literal["breadth", "depth"]


@dataclass(frozen=True, slots=True)
class ExploredStep:
    """One action of an explorer and its answer; `refused` says that the environment did not carry it out."""

    action: str
    observation: str
    phase: Phase
    refused: bool = False
    thought: str = ""


@dataclass(slots=True)
class Exploration:
    """One exploration of one world, as the journal keeps it. `seconds` is wall time."""

    world: World
    number: int
    opening: str
    steps: list[ExploredStep] = field(default_factory=list)
    ended: bool = False
    seconds: float = 0.0

    @property
    def transcript(self) -> list[tuple[int, str, str]]:
        """The steps as prompts take them: (index, action, observation)."""
        return [(i, step.action, step.observation) for i, step in enumerate(self.steps)]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Exploration:
        """Read what `to_dict` returned."""
        steps = [ExploredStep(**step) for step in data["steps"]]
        return cls(World(**data["world"]), data["number"], data["opening"], steps, data["ended"], data["seconds"])


class Explorer:
    """Explores worlds of one environment; safe for many at once on one event loop.

    Args:
        client: the environment service.
        llm: plays the explorer.
        fmt: how the environment's actions are written.
        profile: what is known of it; None if nothing is yet.
        strategy: what the explorer is told of others' tries.
        settings: steps, window, temperatures.
        env_params: environment parameters on top of the format's own.
    """

    def __init__(
        self,
        client: WorldClient,
        llm: LanguageModel,
        fmt: PlainFormat,
        profile: EnvProfile | None,
        strategy: Strategy,
        settings: StrategySettings,
        env_params: dict[str, Any] | None = None,
    ) -> None:
        self._client = client
        self._llm = llm
        self._format = fmt
        self._profile = profile
        self._strategy = strategy
        self._settings = settings
        self._env_params = env_params or {}
        self._breadth, self._depth = settings.steps(fmt.env_type)

    async def explore(self, world: World, number: int) -> Exploration:
        """Explore a world once; `number` tells the explorations of one world apart."""
        total = self._breadth + self._depth
        started = time.perf_counter()
        params = {**self._format.explore_params(total), **self._env_params}
        async with open_world(self._client, world, params) as (instance_id, opening):
            found = Exploration(world, number, opening.context)
            for index in range(total):
                phase: Phase = "breadth" if index < self._breadth else "depth"
                try:
                    reply = await self._next(found, phase, total - index)
                except LLMReplyError as error:
                    if not found.steps:
                        raise
                    logger.info("exploration %d of %s ends after %d steps: %s", number, world.seed_task_id, index, error)
                    break
                result = await self._client.step(instance_id, {"role": "assistant", "content": reply.action}, step_index=index)
                observation = "\n".join(str(message["content"]) for message in result["state"])
                refused = self._format.refusal(result) is not None
                found.steps.append(ExploredStep(reply.action, observation, phase, refused, reply.thought))
                self._strategy.record(world, reply.action, refused=refused)
                if result["is_terminated"]:
                    found.ended = True
                    break
        found.seconds = round(time.perf_counter() - started, 3)
        return found

    async def _next(self, found: Exploration, phase: Phase, steps_left: int) -> ActReply:
        settings = self._settings
        seen = found.transcript if phase == "breadth" else found.transcript[-settings.window(self._format.env_type) :]
        messages = prompts.explore(
            found.opening,
            self._profile,
            phase,
            seen,
            steps_left=steps_left,
            tried=self._strategy.tried(found.world),
        )
        temperature = settings.exploration_llm_temperature if phase == "breadth" else settings.depth_llm_temperature
        sampling = {
            "temperature": temperature,
            "top_p": settings.exploration_llm_top_p,
            "top_k": settings.exploration_llm_top_k,
            # Explorations of one world begin with the same prompt; a cache of replies must not make them the same exploration.
            "seed": zlib.crc32(f"{found.world.seed_task_id}/{found.number}/{len(found.steps)}".encode()),
        }
        return await self._llm.structured(Role.EXPLORER, messages, ActReply, **sampling)


def replayed(strategy: Strategy, exploration: Exploration) -> None:
    """Tell a strategy of an exploration that is recorded already."""
    for step in exploration.steps:
        strategy.record(exploration.world, step.action, refused=step.refused)
