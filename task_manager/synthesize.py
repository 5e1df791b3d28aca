"""Synthesis: one explored trajectory becomes several proposals, each an object of its own (paper, 2.2, equation 10).

Entries of the reply that cannot be used are kept as rejections with the reason, never as tasks. A reply of which
nothing can be used, after the one repair, raises `LLMReplyError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from agentevolver.llm.asking import FILTERED_OR_UNUSABLE, Asker
from agentevolver.llm.prompts import Messages
from agentevolver.llm.settings import Role
from task_manager import prompts
from task_manager.action_reply import as_action
from task_manager.actions import PlainFormat
from task_manager.explore import Exploration
from task_manager.models import TasksReply, read_task
from task_manager.profile import EnvProfile
from task_manager.settings import MAX_OBSERVATION_CHARS, SynthesisSettings

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM


@dataclass(frozen=True, slots=True)
class Proposal:
    """A task as it was proposed. `solution` ends with the action that closes the episode, where the environment has
    one."""

    query: str
    solution: list[str]
    confidence: float


@dataclass(slots=True)
class Synthesis:
    """What came of one trajectory. `rejected` tells why entries of the reply were not taken."""

    proposals: list[Proposal] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Synthesis:
        """Read what `to_dict` returned."""
        return cls([Proposal(**proposal) for proposal in data["proposals"]], list(data["rejected"]))


class Synthesiser:
    """Makes proposals of explorations; safe for many at once on one event loop."""

    def __init__(
        self,
        llm: LLM,
        fmt: PlainFormat,
        profile: EnvProfile,
        settings: SynthesisSettings,
        *,
        max_chars: int = MAX_OBSERVATION_CHARS,
    ) -> None:
        self._asker = Asker(llm, redraws=FILTERED_OR_UNUSABLE)
        self._format = fmt
        self._profile = profile
        self._settings = settings
        self._max_chars = max_chars

    async def propose(self, exploration: Exploration, existing: Sequence[str]) -> Synthesis:
        """Return the proposals of an exploration; `existing` are queries that the synthesiser is to stay away from."""
        settings = self._settings
        if not exploration.steps:
            return Synthesis(rejected=["the exploration has no steps"])

        def prompt(room: int | None) -> Messages:
            return prompts.synthesise(
                exploration.opening,
                self._profile,
                settings.preference,
                exploration.transcript,
                existing=existing,
                count=settings.max_tasks,
                max_chars=self._max_chars,
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
        elif task.confidence < self._settings.min_confidence:
            made.rejected.append(f"confidence {task.confidence:.2f} is below {self._settings.min_confidence:.2f}")
        else:
            actions = [as_action(action, self._format) for action in task.solution]
            solution = self._format.complete(actions, answer=None)
            made.proposals.append(Proposal(prompts.one_line(task.query), solution, task.confidence))
