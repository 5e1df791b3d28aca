"""Exploration: an explorer acts in a world without a goal, first broadly, then deeply (paper, 2.2, eq. 8 and 9).

In the breadth phase the explorer sees every step so far; in the depth phase only the last `window` ones.
"""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import orjson

from agentevolver.llm.asking import FILTERED_OR_UNUSABLE, Asker
from agentevolver.llm.errors import (
    BudgetExceeded,
    LLMContextOverflow,
    LLMFiltered,
    LLMRefused,
    LLMReplyError,
    LLMTimeout,
    LLMUnavailable,
)
from agentevolver.llm.prompts import Messages, StepText, cut
from agentevolver.llm.settings import Role
from agentevolver.utils.files import cut_torn
from env_service.protocol import EnvServiceError, Instances
from task_manager import prompts
from task_manager.actions import PlainFormat
from task_manager.actor import Actor, ToolSchemas
from task_manager.profile import EnvProfile
from task_manager.replies import ParsedAction
from task_manager.settings import MAX_OBSERVATION_CHARS, Focus, ReplyFormat, StrategySettings
from task_manager.world import SeedWorld, open_world

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM

logger = logging.getLogger(__name__)

Phase = Literal["breadth", "depth"]


@dataclass(frozen=True, slots=True)
class ExploredStep:
    action: str
    observation: str
    phase: Phase
    refused: bool = False  # the environment did not carry the action out
    thought: str = ""


class StepLog:
    """Steps of one exploration so far, on disk if it has a path. A killed exploration resumes from it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.opening: str | None = None
        self.steps: list[ExploredStep] = []
        if path is not None and path.exists():
            self._read(path)

    def begin(self, opening: str) -> None:
        self.opening, self.steps = opening, []
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(orjson.dumps({"opening": opening}) + b"\n")

    def add(self, step: ExploredStep) -> None:
        """Append a step; it then survives a kill of this process."""
        self.steps.append(step)
        if self._path is not None:
            # Unbuffered: the kernel has the whole line when this returns.
            with self._path.open("ab", buffering=0) as file:
                file.write(orjson.dumps(asdict(step)) + b"\n")

    def forget(self) -> None:
        self.opening, self.steps = None, []
        self.remove()

    def remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        cut_torn(path)
        try:
            lines: list[Any] = [orjson.loads(line) for line in path.read_bytes().splitlines()]
            if lines:
                self.opening, self.steps = str(lines[0]["opening"]), [ExploredStep(**line) for line in lines[1:]]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            logger.warning("%s is not a valid step log (%s): the exploration restarts", path, error)
            return


class Strategy(Protocol):
    """Decides what an explorer is shown of earlier tries; one object per environment.

    `remembers`: recorded steps must be replayed to it on resume.
    """

    @property
    def remembers(self) -> bool: ...

    def record(self, world: SeedWorld, action: str, *, refused: bool) -> None: ...

    def tried(self, world: SeedWorld) -> list[str]:
        """Return the lines about earlier tries for the explorer of a world."""
        ...


class RandomStrategy:
    """Shows nothing: variety comes from the temperature and the worlds."""

    remembers = False

    def record(self, world: SeedWorld, action: str, *, refused: bool) -> None: ...

    def tried(self, world: SeedWorld) -> list[str]:
        return []


class CuriousStrategy:
    """Shows what other explorers tried, so that this one tries something else.

    First come kinds of actions tried more often than average in any world (`KIND (n times)`), then the latest actions
    in this world. `memory_size` bounds both together.
    """

    remembers = True

    def __init__(self, fmt: PlainFormat, memory_size: int) -> None:
        self._format = fmt
        self._memory_size = memory_size
        self._kinds: Counter[str] = Counter()
        self._worlds: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def record(self, world: SeedWorld, action: str, *, refused: bool) -> None:
        line = re.sub(r"\s+", " ", action).strip()
        seen = self._worlds[world.seed_task_id]
        seen.pop(line, None)
        seen[line] = None
        if len(seen) > self._memory_size:
            del seen[next(iter(seen))]
        # A refused action does not count as a try of its kind: it may work in another world.
        if not refused:
            self._kinds[self._format.signature(action)] += 1

    def tried(self, world: SeedWorld) -> list[str]:
        kinds = [f"{kind} ({count} times)" for kind, count in self._overdone()][: self._memory_size // 2]
        actions = list(self._worlds[world.seed_task_id])[-(self._memory_size - len(kinds)) :]
        return [*kinds, *actions]

    def _overdone(self) -> list[tuple[str, int]]:
        if not self._kinds:
            return []
        average = self._kinds.total() / len(self._kinds)
        return [(kind, count) for kind, count in self._kinds.most_common() if count > average]


def make_strategy(name: str, fmt: PlainFormat, settings: StrategySettings) -> Strategy:
    """Return the strategy with this name; raises ValueError if there is none."""
    if name == "random":
        return RandomStrategy()
    if name == "curious":
        return CuriousStrategy(fmt, settings.memory_size)
    raise ValueError(f"unknown exploration strategy {name!r}: write random or curious")


_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (LLMContextOverflow, "overflow"),
    (LLMFiltered, "filtered"),
    (LLMRefused, "refused"),
    (LLMTimeout, "timeout"),
    (LLMUnavailable, "unavailable"),
    (LLMReplyError, "reply"),
    (BudgetExceeded, "budget"),
    (EnvServiceError, "environment"),
)


def kind_of(error: Exception) -> str:
    return next((name for kind, name in _KINDS if isinstance(error, kind)), "llm")


@dataclass(slots=True)
class Exploration:
    """One exploration of one world, as the journal stores it.

    `ended`: the environment ended the episode. `stopped`: the kind of failure that ended it, or "".
    """

    world: SeedWorld
    number: int
    opening: str
    steps: list[ExploredStep] = field(default_factory=list)
    ended: bool = False
    seconds: float = 0.0
    stopped: str = ""

    @property
    def transcript(self) -> list[tuple[int, str, str]]:
        """The steps for prompts: (index, action, observation)."""
        return [(i, step.action, step.observation) for i, step in enumerate(self.steps)]

    @property
    def own_record(self) -> list[StepText]:
        return [
            StepText(i, s.action, s.observation, cut(s.thought, prompts.THOUGHT_CHARS))
            for i, s in enumerate(self.steps)
        ]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Exploration:
        return cls(
            **{**data, "world": SeedWorld(**data["world"]), "steps": [ExploredStep(**step) for step in data["steps"]]}
        )


def repeated(action: str, steps: Sequence[ExploredStep]) -> str | None:
    """Return why an action is refused as a repetition, or None. One repetition is allowed if another action was carried
    out in between."""
    same = [index for index, step in enumerate(steps) if step.action.strip() == action.strip()]
    if not same or (len(same) < 2 and any(not step.refused for step in steps[same[-1] + 1 :])):
        return None
    return f"it repeats step {same[-1]}, whose answer you know; choose an action that you did not try"


class Explorer:
    """Explores worlds of one environment; safe for concurrent use on one event loop.

    `focus` maps seed tasks to a weakness to explore.
    """

    def __init__(
        self,
        client: Instances,
        llm: LLM,
        fmt: PlainFormat,
        profile: EnvProfile | None,
        strategy: Strategy,
        settings: StrategySettings,
        *,
        reply_format: ReplyFormat = "text",
        max_chars: int = MAX_OBSERVATION_CHARS,
        focus: Mapping[str, Focus] | None = None,
    ) -> None:
        self._client = client
        self._actor = Actor(Asker(llm, redraws=FILTERED_OR_UNUSABLE), Role.EXPLORER, fmt, reply_format)
        self._format = fmt
        self._profile = profile
        self._strategy = strategy
        self._settings = settings
        self._reply_format: ReplyFormat = reply_format
        self._max_chars = max_chars
        self._focus = focus or {}
        self._breadth, self._depth = settings.steps(fmt.env_type)

    async def explore(self, world: SeedWorld, number: int, log: StepLog | None = None) -> Exploration:
        """Explore a world once, resuming from `log`; `number` tells explorations of one world apart.

        If the model refuses or gives no usable reply, the exploration ends and its steps count. Failures before the
        first step, and those of environment, endpoint or budget, are raised.
        """
        log = log or StepLog()
        started, taken = time.perf_counter(), len(log.steps)
        found = await self._go_on(world, number, log)
        if found is None:
            logger.warning(
                "exploration %d of %s restarts: replaying its %d steps gave other observations",
                number,
                world.seed_task_id,
                taken,
            )
            log.forget()
            found = await self._go_on(world, number, log)
        assert found is not None, "a log without steps has nothing to be answered otherwise"
        found.seconds = round(time.perf_counter() - started, 3)
        return found

    async def _go_on(self, world: SeedWorld, number: int, log: StepLog) -> Exploration | None:
        """Replay the log in a fresh instance and continue. Returns None if an observation differs from the log."""
        total = self._breadth + self._depth
        params = self._format.explore_params(total)
        async with open_world(self._client, world, params) as (instance_id, opened):
            opening = opened.context
            found = Exploration(world, number, opening, log.steps)
            if log.steps and (opening != log.opening or not await self._retaken(found, instance_id)):
                return None
            if not log.steps:
                log.begin(opening)
                found.steps = log.steps
            tools = (
                ToolSchemas.of(await self._client.get_tools_info(instance_id))
                if self._reply_format == "tools"
                else None
            )
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
                log.add(step)
                self._strategy.record(world, step.action, refused=step.refused)
        return found

    async def _retaken(self, found: Exploration, instance_id: str) -> bool:
        for index, step in enumerate(found.steps):
            if found.ended:
                return False
            again, found.ended = await self._step(
                instance_id, index, ParsedAction(step.action, step.thought), step.phase
            )
            if again != step:
                return False
        return True

    async def _step(self, instance_id: str, index: int, said: ParsedAction, phase: Phase) -> tuple[ExploredStep, bool]:
        result = await self._client.step(instance_id, {"role": "assistant", "content": said.action}, step_index=index)
        observation = "\n".join(str(message["content"]) for message in result["state"])
        refused = self._format.refusal(result) is not None
        return ExploredStep(said.action, observation, phase, refused, said.thought), bool(result["is_terminated"])

    async def _next(self, found: Exploration, phase: Phase, steps_left: int, tools: ToolSchemas | None) -> ParsedAction:
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
                focus=self._focus.get(found.world.seed_task_id),
                reply_format=self._reply_format if self._reply_format != "tools" or tools is not None else "text",
                room=room,
            )

        return await self._actor.next(
            prompt,
            opening=found.opening,
            tools=tools,
            may_close=False,
            refuse=lambda action: repeated(action, found.steps),
            # Explorations of one world begin with the same prompt; a cache of replies must not make them the same
            # exploration.
            seed=zlib.crc32(f"{found.world.seed_task_id}/{found.number}/{len(found.steps)}".encode()) >> 2,
            temperature=settings.temperature(phase),
            top_p=settings.exploration_llm_top_p,
            top_k=settings.exploration_llm_top_k,
        )


def replayed(strategy: Strategy, world: SeedWorld, steps: Sequence[ExploredStep]) -> None:
    for step in steps:
        strategy.record(world, step.action, refused=step.refused)
