"""Verification of a proposal: its solution is carried out in a fresh instance, solved again if wanted, and judged.

A proposal passes if nothing was refused, the episode ended as it should, the world changed or an answer was given, and the judge says
that this is what the query asks for. Otherwise the verdict says which stage dropped it and why. That the environment or a model fails
is no verdict: `EnvServiceError` and `LLMError` go to the caller, who may try again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from agentevolver.llm.errors import LLMReplyError
from agentevolver.llm.settings import Role
from task_manager import prompts
from task_manager.execution import Execution, World, WorldClient, execute, open_world
from task_manager.formats import PlainFormat
from task_manager.models import AcceptReply, ActReply, LanguageModel
from task_manager.settings import VerificationSettings
from task_manager.state import StateCheck
from task_manager.synthesize import Proposal

Stage = Literal["execute", "resolve", "judge"]
# Whether a solution was carried out and the environment said what became of it, was carried out and it did not say, or was not.
Executed = Literal["checked", "observed", "no"]
SECOND_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a proposal: `dropped_by` names the stage that dropped it and is None if it passed.

    `steps` are the reference solution's as carried out, (action, observation); `check` is its machine check where there is one. `executed`
    says whether it was carried out, and whether the environment said what became of it.
    """

    dropped_by: Stage | None
    reason: str
    steps: list[tuple[str, str]]
    check: StateCheck | None = None
    changes: tuple[str, ...] = ()
    executed: Executed = "no"

    @property
    def passed(self) -> bool:
        """Whether the proposal may become a task."""
        return self.dropped_by is None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)


class Verifier:
    """Verifies proposals; safe for many at once on one event loop."""

    def __init__(self, client: WorldClient, llm: LanguageModel, fmt: PlainFormat, settings: VerificationSettings) -> None:
        self._client = client
        self._llm = llm
        self._format = fmt
        self._settings = settings

    async def verify(self, world: World, proposal: Proposal, opening: str) -> Verdict:
        """Return the verdict on a proposal for a world; `opening` is what the environment says there before a task."""
        settings, execution = self._settings, None
        steps: list[tuple[str, str]] = [(action, "") for action in proposal.solution]
        if settings.execute and self._format.executable:
            execution = await execute(self._client, world, self._format, proposal.solution)
            steps = list(zip(execution.actions, execution.observations, strict=True))
            if (flaw := flaw_of(execution, self._format)) is not None:
                return self._verdict("execute", flaw, steps, execution)
        attempt = None
        if settings.resolve:
            attempt, disagreement = await self._resolve(world, proposal, opening, execution)
            if disagreement is not None:
                return self._verdict("resolve", disagreement, steps, execution)
        if settings.judge and (refusal := await self._refusal(proposal, opening, steps, attempt, executed_by(execution))) is not None:
            return self._verdict("judge", refusal, steps, execution)
        return self._verdict(None, "", steps, execution)

    def _verdict(self, stage: Stage | None, reason: str, steps: list[tuple[str, str]], execution: Execution | None) -> Verdict:
        if execution is None:
            return Verdict(stage, reason, steps)
        changes = tuple(str(change) for change in execution.changes or [])
        return Verdict(stage, reason, steps, execution.check, changes, executed_by(execution))

    async def _refusal(
        self,
        proposal: Proposal,
        opening: str,
        steps: list[tuple[str, str]],
        attempt: list[tuple[str, str]] | None,
        executed: Executed,
    ) -> str | None:
        """Return why the judge refuses a proposal, None if it accepts.

        A refusal by mistake loses a good task that the environment carried out, so a refusal is asked again, with other draws.
        """
        tried = None if attempt is None else numbered(attempt)
        messages = prompts.accept(opening, proposal.query, numbered(steps), tried, executed=executed)
        first = self._refused(await self._llm.structured(Role.JUDGE, messages, AcceptReply, temperature=0.0))
        if first is None:
            return None
        for number in range(self._settings.second_opinions):
            again = await self._llm.structured(Role.JUDGE, messages, AcceptReply, temperature=SECOND_TEMPERATURE, seed=number)
            if self._refused(again) is not None:
                return first
        return first if self._settings.second_opinions == 0 else None

    def _refused(self, reply: AcceptReply) -> str | None:
        if not reply.accepted:
            return reply.reason
        if reply.confidence < self._settings.min_judge_confidence:
            return f"accepted with a confidence of {reply.confidence:.2f} only: {reply.reason}"
        return None

    async def _resolve(
        self, world: World, proposal: Proposal, opening: str, execution: Execution | None
    ) -> tuple[list[tuple[str, str]], str | None]:
        """Let the verifier solve the task; returns its last attempt and, if none of its tries will do, what is wrong with it."""
        wanted = execution.check if execution is not None else None
        attempt: list[tuple[str, str]] = []
        problem: str | None = None
        for _ in range(self._settings.resolve_tries):
            attempt, problem = await self._attempt(world, proposal, opening, wanted)
            if problem is None:
                break
        return attempt, problem

    async def _attempt(
        self, world: World, proposal: Proposal, opening: str, wanted: StateCheck | None
    ) -> tuple[list[tuple[str, str]], str | None]:
        limit = self._settings.max_resolve_steps or 3 * len(proposal.solution) + 2
        steps: list[tuple[str, str]] = []
        finished = False
        async with open_world(self._client, world, self._format.replay_params(limit)) as (instance_id, _):
            for index in range(limit):
                messages = prompts.solve(opening, proposal.query, numbered(steps), steps_left=limit - index)
                try:
                    reply = await self._llm.structured(Role.VERIFIER, messages, ActReply)
                except LLMReplyError as error:
                    return steps, f"the verifier said nothing that can be done: {error}"
                result = await self._client.step(instance_id, {"role": "assistant", "content": reply.action}, step_index=index)
                steps.append((reply.action, "\n".join(str(message["content"]) for message in result["state"])))
                if result["is_terminated"]:
                    finished = self._format.finished(result)
                    break
            if not finished:
                return steps, f"the verifier did not finish in {limit} steps"
            if wanted is None:
                return steps, None
            state = await self._format.state(self._client, instance_id)
        missed = [name for name, holds in wanted.judge(state) if not holds] if state is not None else []
        return steps, f"solved without the reference, this does not hold: {'; '.join(missed)}" if missed else None


def executed_by(execution: Execution | None) -> Executed:
    """Return whether a solution was carried out, and whether the environment said what became of it."""
    if execution is None:
        return "no"
    return "checked" if execution.told else "observed"


def flaw_of(execution: Execution, fmt: PlainFormat) -> str | None:
    """Return why an executed reference solution will not do, None if it will.

    Where the environment does not say what became of an action, only its state and an end before the last action can tell.
    """
    if execution.refusals:
        index, why = execution.refusals[0]
        return f"action {index} ({prompts.one_line(execution.actions[index])[:80]}) was refused: {prompts.one_line(why)[:200]}"
    if execution.told and not execution.finished:
        return f"the episode did not end after its {len(execution.actions)} actions"
    if execution.left_over:
        return f"the episode ended with {execution.left_over} actions left over"
    last = execution.actions[-1] if execution.actions else ""
    answers = bool(execution.answer or fmt.answer_of(last)) and last.strip() != fmt.closing(None)
    if execution.changes is not None and not execution.changes and not answers:
        return "it changes nothing and answers nothing"
    return None


def numbered(steps: list[tuple[str, str]]) -> list[tuple[int, str, str]]:
    """Return steps as prompts take them."""
    return [(index, action, observation) for index, (action, observation) in enumerate(steps)]
