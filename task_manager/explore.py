"""Exploration: an explorer takes steps in a world without a goal, first broadly, then deeply (paper, 2.2, equations 8
and 9).

In the breadth phase the explorer sees every step so far; in the depth phase only the last `window` ones, so that it
goes on from where it is instead of from where it began. Every step is kept in the exploration's `Flight` before the
next one is asked for: an exploration that was broken off goes on in a fresh instance in which its steps are taken
    again. Where the world then answers otherwise, it begins anew.

An exploration that ends early because the environment ended the episode, or because the model refused, was filtered or
said nothing usable any more, counts with the steps it has. One that failed before its first step, or because the
environment, the endpoint or the budget did, raises what failed (`EnvServiceError`, `LLMError`).
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from agentevolver.llm.asking import FILTERED_OR_UNUSABLE, Asker
from agentevolver.llm.errors import LLMRefused, LLMReplyError
from agentevolver.llm.prompts import Messages, StepText, cut
from agentevolver.llm.settings import Role
from task_manager import prompts
from task_manager.acting import Actor, Tools
from task_manager.action_reply import Said
from task_manager.actions import PlainFormat
from task_manager.failures import kind_of
from task_manager.flights import ExploredStep, Flight, Phase
from task_manager.profile import EnvProfile
from task_manager.settings import MAX_OBSERVATION_CHARS, ReplyFormat, StrategySettings
from task_manager.strategies import Strategy
from task_manager.world import World, WorldClient, open_world

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM


logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Exploration:
    """One exploration of one world, as the journal keeps it.

    `ended` says that the environment ended it, `stopped` what failure did (`failures.kind_of`; "" for none). `seconds`
    is wall time.
    """

    world: World
    number: int
    opening: str
    steps: list[ExploredStep] = field(default_factory=list)
    ended: bool = False
    seconds: float = 0.0
    stopped: str = ""

    @property
    def transcript(self) -> list[tuple[int, str, str]]:
        """The steps as prompts take them: (index, action, observation)."""
        return [(i, step.action, step.observation) for i, step in enumerate(self.steps)]

    @property
    def own_record(self) -> list[StepText]:
        """The steps as whoever takes them sees them: with what was thought."""
        return [
            StepText(i, s.action, s.observation, cut(s.thought, prompts.THOUGHT_CHARS))
            for i, s in enumerate(self.steps)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Exploration:
        """Read what `to_dict` returned."""
        return cls(
            **{**data, "world": World(**data["world"]), "steps": [ExploredStep(**step) for step in data["steps"]]}
        )


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
        reply_format: how the explorer replies.
        max_chars: of an observation in its prompts.
    """

    def __init__(
        self,
        client: WorldClient,
        llm: LLM,
        fmt: PlainFormat,
        profile: EnvProfile | None,
        strategy: Strategy,
        settings: StrategySettings,
        env_params: dict[str, Any] | None = None,
        *,
        reply_format: ReplyFormat = "text",
        max_chars: int = MAX_OBSERVATION_CHARS,
    ) -> None:
        self._client = client
        self._actor = Actor(Asker(llm, redraws=FILTERED_OR_UNUSABLE), Role.EXPLORER, fmt, reply_format)
        self._format = fmt
        self._profile = profile
        self._strategy = strategy
        self._settings = settings
        self._env_params = env_params or {}
        self._reply_format: ReplyFormat = reply_format
        self._max_chars = max_chars
        self._breadth, self._depth = settings.steps(fmt.env_type)

    async def explore(self, world: World, number: int, flight: Flight | None = None) -> Exploration:
        """Explore a world once, from where `flight` stands; `number` tells the explorations of one world apart."""
        flight = flight or Flight()
        started, taken = time.perf_counter(), len(flight.steps)
        found = await self._go_on(world, number, flight)
        if found is None:
            logger.warning(
                "exploration %d of %s begins anew: its world does not answer the %d steps again as it did",
                number,
                world.seed_task_id,
                taken,
            )
            flight.forget()
            found = await self._go_on(world, number, flight)
        assert found is not None, "a flight without steps has nothing to be answered otherwise"
        found.seconds = round(time.perf_counter() - started, 3)
        return found

    async def _go_on(self, world: World, number: int, flight: Flight) -> Exploration | None:
        """Take a flight's steps again in a fresh instance and go on behind them; returns None if they are not answered
        as they were."""
        total = self._breadth + self._depth
        params = {**self._format.explore_params(total), **self._env_params}
        async with open_world(self._client, world, params) as (instance_id, opened):
            opening = opened.context
            found = Exploration(world, number, opening, flight.steps)
            if flight.steps and (opening != flight.opening or not await self._retaken(found, instance_id)):
                return None
            if not flight.steps:
                flight.begin(opening)
                found.steps = flight.steps
            tools = Tools.of(await self._client.get_tools_info(instance_id)) if self._reply_format == "tools" else None
            for index in range(len(found.steps), total):
                if found.ended:
                    break
                phase: Phase = "breadth" if index < self._breadth else "depth"
                try:
                    said = await self._next(found, phase, total - index, tools)
                except (LLMReplyError, LLMRefused) as error:
                    if not found.steps:
                        raise
                    logger.info(
                        "exploration %d of %s ends after %d steps: %s", number, world.seed_task_id, index, error
                    )
                    found.stopped = kind_of(error)
                    break
                step, found.ended = await self._step(instance_id, index, said, phase)
                flight.add(step)
                self._strategy.record(world, step.action, refused=step.refused)
        return found

    async def _retaken(self, found: Exploration, instance_id: str) -> bool:
        """Take the steps of an exploration again; returns whether the world answers as it did."""
        for index, step in enumerate(found.steps):
            if found.ended:
                return False
            again, found.ended = await self._step(instance_id, index, Said(step.action, step.thought), step.phase)
            if again != step:
                return False
        return True

    async def _step(self, instance_id: str, index: int, said: Said, phase: Phase) -> tuple[ExploredStep, bool]:
        """Take one step; returns it, and whether the episode is over."""
        result = await self._client.step(instance_id, {"role": "assistant", "content": said.action}, step_index=index)
        observation = "\n".join(str(message["content"]) for message in result["state"])
        refused = self._format.refusal(result) is not None
        return ExploredStep(said.action, observation, phase, refused, said.thought), bool(result["is_terminated"])

    async def _next(self, found: Exploration, phase: Phase, steps_left: int, tools: Tools | None) -> Said:
        settings = self._settings
        seen = found.own_record if phase == "breadth" else found.own_record[-settings.window(self._format.env_type) :]
        tried = self._strategy.tried(found.world)

        def prompt(room: int | None) -> Messages:
            return prompts.explore(
                found.opening,
                self._profile,
                phase,
                seen,
                steps_left=steps_left,
                tried=tried,
                max_chars=self._max_chars,
                reply_format=self._reply_format if self._reply_format != "tools" or tools is not None else "text",
                room=room,
            )

        return await self._actor.next(
            prompt,
            opening=found.opening,
            tools=tools,
            may_close=False,
            # Explorations of one world begin with the same prompt; a cache of replies must not make them the same
            # exploration.
            seed=zlib.crc32(f"{found.world.seed_task_id}/{found.number}/{len(found.steps)}".encode()) >> 2,
            temperature=settings.exploration_llm_temperature if phase == "breadth" else settings.depth_llm_temperature,
            top_p=settings.exploration_llm_top_p,
            top_k=settings.exploration_llm_top_k,
        )


def replayed(strategy: Strategy, world: World, steps: Sequence[ExploredStep]) -> None:
    """Tell a strategy of steps that are recorded already."""
    for step in steps:
        strategy.record(world, step.action, refused=step.refused)
