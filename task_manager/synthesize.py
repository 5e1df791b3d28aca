"""Synthesis: turns an exploration into task proposals (paper, 2.2, eq. 10), or drafts an environment's profile."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError, model_validator

from agentevolver.llm.asking import FILTERED_OR_UNUSABLE, Asker
from agentevolver.llm.prompts import Messages
from agentevolver.llm.settings import Role
from env_service.protocol import Instances
from task_manager import prompts
from task_manager.actions import PlainFormat, format_of
from task_manager.explore import Exploration, Explorer, RandomStrategy
from task_manager.profile import Entity, EnvProfile, Operation, TaskPreference
from task_manager.replies import TasksReply, as_action, read_task
from task_manager.settings import MAX_OBSERVATION_CHARS, Focus, ReplyFormat, StrategySettings, SynthesisSettings
from task_manager.world import SeedWorld, open_world

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM


@dataclass(frozen=True, slots=True)
class TaskProposal:
    """A proposed task. `solution` ends with the action that closes the episode, if the environment has one."""

    query: str
    solution: list[str]
    confidence: float


@dataclass(slots=True)
class Synthesis:
    """The proposals of one exploration, and why other entries of the reply were rejected."""

    proposals: list[TaskProposal] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Synthesis:
        return cls([TaskProposal(**proposal) for proposal in data["proposals"]], list(data["rejected"]))


class Synthesiser:
    """Turns explorations into proposals; safe for concurrent use on one event loop. `focus` is keyed by seed task."""

    def __init__(
        self,
        llm: LLM,
        fmt: PlainFormat,
        profile: EnvProfile,
        settings: SynthesisSettings,
        *,
        max_chars: int = MAX_OBSERVATION_CHARS,
        focus: Mapping[str, Focus] | None = None,
    ) -> None:
        self._asker = Asker(llm, redraws=FILTERED_OR_UNUSABLE)
        self._format = fmt
        self._profile = profile
        self._settings = settings
        self._max_chars = max_chars
        self._focus = focus or {}

    async def propose(self, exploration: Exploration, existing: Sequence[str]) -> Synthesis:
        """Return an exploration's proposals; `existing` are queries to avoid."""
        settings = self._settings
        if not exploration.steps:
            return Synthesis(rejected=["the exploration has no steps"])

        def prompt(room: int | None) -> Messages:
            return prompts.synthesise(
                exploration.opening,
                self._profile,
                exploration.transcript,
                existing=existing,
                count=settings.max_tasks,
                min_actions=settings.min_actions,
                max_chars=self._max_chars,
                focus=self._focus.get(exploration.world.seed_task_id),
                room=room,
            )

        reply = await self._asker.structured(Role.SYNTHESISER, prompt, TasksReply, temperature=settings.temperature)
        made = Synthesis()
        for entry in reply.tasks[: settings.max_tasks]:
            self._take(entry, made)
        made.rejected += ["more tasks than were asked for"] * max(0, len(reply.tasks) - settings.max_tasks)
        return made

    def _take(self, entry: Any, made: Synthesis) -> None:
        task = read_task(entry)
        if isinstance(task, str):
            made.rejected.append(task)
        else:
            actions = [as_action(action, self._format) for action in task.solution]
            solution = self._format.complete(actions, answer=None)
            if len(solution) < self._settings.min_actions:
                made.rejected.append(f"{len(solution)} actions are fewer than {self._settings.min_actions}")
                return
            made.proposals.append(TaskProposal(prompts.one_line(task.query), solution, task.confidence))


class DraftReply(EnvProfile):
    """A profile as models write it: unknown keys and invalid entities or operations are dropped."""

    @model_validator(mode="before")
    @classmethod
    def _without_the_rest(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        kept = _known(data, EnvProfile)
        if isinstance(kept.get("entities"), list):
            entities = [_known(item, Entity) for item in kept["entities"] if isinstance(item, Mapping)]
            for entity in entities:
                if isinstance(entity.get("opts"), list):
                    operations = [_known(item, Operation) for item in entity["opts"] if isinstance(item, Mapping)]
                    entity["opts"] = [item for item in operations if _is(item, Operation)]
            kept["entities"] = [entity for entity in entities if _is(entity, Entity)]
        if isinstance(kept.get("task_preference"), Mapping):
            kept["task_preference"] = _known(kept["task_preference"], TaskPreference)
        return kept


def _known(data: Mapping[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key in kind.model_fields}


def _is(data: Any, kind: type[BaseModel]) -> bool:
    try:
        kind.model_validate(data)
    except ValidationError:
        return False
    return True


async def draft_profile(
    client: Instances,
    llm: LLM,
    world: SeedWorld,
    *,
    steps: int = 8,
    reply_format: ReplyFormat = "text",
    max_chars: int = MAX_OBSERVATION_CHARS,
    action_format: str | None = None,
) -> EnvProfile:
    """Explore a world and draft its profile; the user should edit its preference and rubrics."""
    fmt = format_of(world.env_type, action_format)
    async with open_world(client, world, fmt.explore_params(1)) as (instance_id, _):
        tools = tools_text(await client.get_tools_info(instance_id))
    settings = StrategySettings(breadth_steps=steps, depth_steps=0)
    explorer = Explorer(
        client, llm, fmt, None, RandomStrategy(), settings, reply_format=reply_format, max_chars=max_chars
    )
    exploration = await explorer.explore(world, 0)

    def prompt(room: int | None) -> Messages:
        return prompts.draft_profile(exploration.opening, tools, exploration.transcript, max_chars=max_chars, room=room)

    asker = Asker(llm, redraws=FILTERED_OR_UNUSABLE)
    reply = await asker.structured(Role.SYNTHESISER, prompt, DraftReply, temperature=0.3)
    return EnvProfile.model_validate(reply.model_dump())


def tools_text(told: Any) -> str:
    if isinstance(told, dict) and "tools" in told:
        told = told["tools"]
    if not told:
        return ""
    return told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)
