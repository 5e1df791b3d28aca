"""Verification of proposals: execute the solution in a fresh instance, optionally solve the task again, ask the judge.

A proposal passes if no action was refused, the episode ended as it should, something changed or was answered, and the
judge accepts it. `recheck` verifies the reference solutions of a task file again, without a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentevolver.llm.asking import FILTERED_OR_UNUSABLE, Asker
from agentevolver.llm.errors import LLMContextOverflow, LLMFiltered, LLMReplyError
from agentevolver.llm.prompts import Messages
from agentevolver.llm.settings import Role
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError
from env_service.client import AsyncEnvClient
from env_service.protocol import Instances
from task_manager import prompts
from task_manager.actions import PlainFormat, format_of, read_state
from task_manager.actor import Actor
from task_manager.graders.environment import CHECK_KEY, check_of
from task_manager.replies import AcceptReply
from task_manager.report import print_recheck, progress_bar
from task_manager.settings import MAX_OBSERVATION_CHARS, QuestioningConfiguration, ReplyFormat, VerificationSettings
from task_manager.state import StateCheck, WorldState
from task_manager.synthesize import TaskProposal
from task_manager.tasks import read_objectives, seed_of, solution_of, write_objectives
from task_manager.world import Execution, SeedWorld, execute, open_world

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM

Stage = Literal["execute", "resolve", "judge"]
# checked: carried out, and the environment confirmed each action; observed: carried out without confirmation.
Executed = Literal["checked", "observed", "no"]
SECOND_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class ProposalVerdict:
    """The verdict on a proposal. `dropped_by` is the stage that rejected it, or None.

    `steps` are the solution's (action, observation). `check` is its state check, if the environment exposes states.
    `solution` is a shorter one that the verifier found, or None.
    """

    dropped_by: Stage | None
    reason: str
    steps: list[tuple[str, str]]
    check: StateCheck | None = None
    changes: tuple[str, ...] = ()
    executed: Executed = "no"
    solution: list[str] | None = None

    @property
    def passed(self) -> bool:
        return self.dropped_by is None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Attempt:
    steps: list[tuple[str, str]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)  # actions that were not refused
    problem: str | None = None  # None if the task was solved


class Verifier:
    """Verifies proposals; safe for concurrent use on one event loop."""

    def __init__(
        self,
        client: Instances,
        llm: LLM,
        fmt: PlainFormat,
        settings: VerificationSettings,
        *,
        reply_format: ReplyFormat = "text",
        max_chars: int = MAX_OBSERVATION_CHARS,
    ) -> None:
        self._client = client
        self._asker = Asker(llm, redraws=FILTERED_OR_UNUSABLE)
        # A solution is a list of messages, so the verifier makes no native calls.
        self._reply_format: ReplyFormat = "text" if reply_format == "tools" else reply_format
        self._actor = Actor(self._asker, Role.VERIFIER, fmt, self._reply_format)
        self._format = fmt
        self._settings = settings
        self._max_chars = max_chars

    async def verify(self, world: SeedWorld, proposal: TaskProposal, opening: str) -> ProposalVerdict:
        """Return the verdict on a proposal; `opening` is the environment's first message without a task.

        Errors of environment and models pass through: they are no verdict.
        """
        settings, execution = self._settings, None
        steps: list[tuple[str, str]] = [(action, "") for action in proposal.solution]
        solution: list[str] | None = None
        if self._format.executable:
            execution = await execute(self._client, world, self._format, proposal.solution)
            steps = steps_of(execution)
            if (flaw := flaw_of(execution, self._format)) is not None:
                return self._verdict("execute", flaw, steps, execution)
        other: list[tuple[str, str]] | None = None
        if settings.resolve:
            attempt = await self._resolve(world, proposal, opening, execution)
            if attempt.problem is not None:
                return self._verdict("resolve", attempt.problem, steps, execution)
            other = attempt.steps
            if execution is not None and (shorter := await self._shorter(world, execution, attempt.done)) is not None:
                # The shorter solution becomes the reference, the proposed one the other attempt.
                other, execution = steps, shorter
                steps, solution = steps_of(shorter), shorter.actions
        if (
            settings.judge
            and (refusal := await self._refusal(proposal, opening, steps, other, executed_by(execution))) is not None
        ):
            return self._verdict("judge", refusal, steps, execution, solution)
        return self._verdict(None, "", steps, execution, solution)

    def _verdict(
        self,
        stage: Stage | None,
        reason: str,
        steps: list[tuple[str, str]],
        execution: Execution | None,
        solution: list[str] | None = None,
    ) -> ProposalVerdict:
        if execution is None:
            return ProposalVerdict(stage, reason, steps)
        changes = tuple(str(change) for change in execution.changes or [])
        return ProposalVerdict(stage, reason, steps, execution.check, changes, executed_by(execution), solution)

    async def _refusal(
        self,
        proposal: TaskProposal,
        opening: str,
        steps: list[tuple[str, str]],
        attempt: list[tuple[str, str]] | None,
        executed: Executed,
    ) -> str | None:
        tried = None if attempt is None else prompts.numbered(attempt)

        def prompt(room: int | None) -> Messages:
            return prompts.accept(
                opening,
                proposal.query,
                prompts.numbered(steps),
                tried,
                executed=executed,
                max_chars=self._max_chars,
                room=room,
            )

        try:
            first = self._refused(await self._asker.structured(Role.JUDGE, prompt, AcceptReply, temperature=0.0))
            if first is None:
                return None
            # A wrong rejection loses a task that the environment has confirmed, so the judge is asked again.
            for number in range(self._settings.second_opinions):
                again = await self._asker.structured(
                    Role.JUDGE, prompt, AcceptReply, temperature=SECOND_TEMPERATURE, seed=2 * number
                )
                if self._refused(again) is not None:
                    return first
        except (LLMFiltered, LLMContextOverflow) as error:
            # Further opinions would meet the same filter or limit.
            return f"the judge cannot be asked about this query: {error}"
        return None

    def _refused(self, reply: AcceptReply) -> str | None:
        return None if reply.accepted else reply.reason

    async def _resolve(
        self, world: SeedWorld, proposal: TaskProposal, opening: str, execution: Execution | None
    ) -> _Attempt:
        wanted = execution.check if execution is not None else None
        attempt = _Attempt(problem="it was not tried")
        for number in range(self._settings.resolve_tries):
            attempt = await self._attempt(world, proposal, opening, wanted, number)
            if attempt.problem is None:
                break
        return attempt

    async def _attempt(
        self, world: SeedWorld, proposal: TaskProposal, opening: str, wanted: StateCheck | None, number: int
    ) -> _Attempt:
        limit = 3 * len(proposal.solution) + 2
        tried, finished = _Attempt(), False
        async with open_world(self._client, world, self._format.replay_params(limit)) as (instance_id, _):
            for index in range(limit):
                left, seen = limit - index, prompts.numbered(tried.steps)

                def prompt(room: int | None, left: int = left, seen: prompts.Steps = seen) -> Messages:
                    return prompts.solve(
                        opening,
                        proposal.query,
                        seen,
                        steps_left=left,
                        max_chars=self._max_chars,
                        reply_format=self._reply_format,
                        room=room,
                    )

                try:
                    said = await self._actor.next(prompt, opening=opening, seed=1_000 * number)
                except (LLMReplyError, LLMFiltered, LLMContextOverflow) as error:
                    tried.problem = f"the verifier gave no usable action: {error}"
                    return tried
                result = await self._client.step(
                    instance_id, {"role": "assistant", "content": said.action}, step_index=index
                )
                tried.steps.append((said.action, "\n".join(str(message["content"]) for message in result["state"])))
                if self._format.refusal(result) is None:
                    tried.done.append(said.action)
                if result["is_terminated"]:
                    finished = self._format.finished(result)
                    break
            if not finished:
                tried.problem = f"the verifier did not finish in {limit} steps"
            elif wanted is not None and (state := await read_state(self._client, instance_id)) is not None:
                tried.problem = _missed(wanted, state)
        return tried

    async def _shorter(self, world: SeedWorld, reference: Execution, actions: list[str]) -> Execution | None:
        """Execute a shorter solution; returns it if nothing is refused and it reaches the same end state, else None."""
        wanted = reference.check
        if wanted is None or len(actions) >= len(reference.actions):
            return None
        again = await execute(self._client, world, self._format, actions)
        if again.after is None or again.check is None or flaw_of(again, self._format) is not None:
            return None
        return again if _missed(wanted, again.after) is None else None


def _missed(wanted: StateCheck, state: WorldState) -> str | None:
    missed = [name for name, holds in wanted.judge(state) if not holds]
    return f"solved without the reference, this does not hold: {'; '.join(missed)}" if missed else None


def steps_of(execution: Execution) -> list[tuple[str, str]]:
    return list(zip(execution.actions, execution.observations, strict=True))


def executed_by(execution: Execution | None) -> Executed:
    if execution is None:
        return "no"
    return "checked" if execution.confirmed else "observed"


def flaw_of(execution: Execution, fmt: PlainFormat) -> str | None:
    """Return why an executed solution is no valid reference, or None if it is."""
    if execution.refusals:
        index, why = execution.refusals[0]
        return (
            f"action {index} ({prompts.one_line(execution.actions[index])[:80]}) was refused: "
            f"{prompts.one_line(why)[:200]}"
        )
    # Without confirmation, only the state and an early end can show a flaw.
    if execution.confirmed and not execution.finished:
        return f"the episode did not end after its {len(execution.actions)} actions"
    if execution.left_over:
        return f"the episode ended with {execution.left_over} actions left over"
    last = execution.actions[-1] if execution.actions else ""
    said = fmt.answer_of(last) if execution.answer is None else execution.answer
    answers = bool(said) and last.strip() != fmt.closing(None)
    if execution.changes is not None and not execution.changes and not answers:
        return "it changes nothing and answers nothing"
    return None


Tell = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class RecheckFinding:
    task: Task
    flaw: str | None


async def recheck(configuration: QuestioningConfiguration, path: Path | None, out: Path | None) -> int:
    """Recheck a task file; returns the exit code, 1 if a reference solution fails."""
    path = path or configuration.task_manager.train_data_path
    try:
        tasks = read_objectives(path)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    service = configuration.env_service
    async with AsyncEnvClient(service.env_url, timeout_s=service.timeout_s) as client:
        with progress_bar("checking") as tell:
            settings = configuration.task_manager
            findings = await recheck_tasks(
                client, tasks, service.env_params, settings.num_explore_threads, tell, settings.action_format
            )
    if out is not None:
        write_objectives(out, [finding.task for finding in findings if finding.flaw is None])
    print_recheck([(finding.task, finding.flaw) for finding in findings])
    return 0 if all(finding.flaw is None for finding in findings) else 1


async def recheck_tasks(
    client: Instances,
    tasks: Sequence[Task],
    env_params: Mapping[str, Any],
    at_once: int,
    tell: Tell | None = None,
    action_format: str | None = None,
) -> list[RecheckFinding]:
    slots = asyncio.Semaphore(at_once)
    done = 0

    async def check(task: Task) -> RecheckFinding:
        nonlocal done
        async with slots:
            finding = RecheckFinding(
                task, await _flaw(client, task, env_params, format_of(task.env_type, action_format))
            )
        done += 1
        if tell is not None:
            tell(done, len(tasks), done)
        return finding

    return list(await asyncio.gather(*(check(task) for task in tasks)))


async def _flaw(client: Instances, task: Task, env_params: Mapping[str, Any], fmt: PlainFormat) -> str | None:
    if not fmt.executable:
        return f"the action format of the environment {task.env_type!r} says that its actions must not be repeated"
    actions = solution_of(task)
    if not actions:
        return "it has no reference solution"
    execution = await execute(client, SeedWorld(task.env_type, seed_of(task), dict(env_params)), fmt, actions)
    if not execution.confirmed and execution.after is None:
        return f"the environment {task.env_type!r} does not say what an action did"
    if (flaw := flaw_of(execution, fmt)) is not None:
        return flaw
    if task.metadata.get(CHECK_KEY) is None or execution.after is None:
        return None
    missed = [name for name, holds in check_of(task).judge(execution.after) if not holds]
    return f"does not hold: {'; '.join(missed)}" if missed else None
