"""Evaluation of a model on the golden set: asks each case as the framework would, checks the replies, and reports."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentevolver.golden.cases import Case
from agentevolver.llm.asking import Asker
from agentevolver.llm.client import LLM
from agentevolver.llm.errors import LLMError, LLMReplyError, Reply
from agentevolver.llm.prompts import Messages
from agentevolver.llm.settings import OFFLINE, Role
from agentevolver.types import Outcome, Step, StopReason, Task, Trajectory
from agentevolver.utils.files import write_json
from task_manager import prompts
from task_manager.acting import Actor
from task_manager.actions import format_of
from task_manager.profile import EnvProfile, ProfileError, shipped_profile
from task_manager.replies import AcceptReply, GradeReply, TasksReply
from task_manager.settings import MAX_OBSERVATION_CHARS, ReplyFormat

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM

_UNKNOWN_WORLD = EnvProfile.model_validate(
    {
        "name": "An environment",
        "background": "Its opening says what there is.",
        "entities": [{"name": "Things", "description": "See the opening.", "attrs": {}, "opts": []}],
        "task_preference": {"num_entities": 1, "num_opts": 2, "relation_difficulty": 2},
    }
)


class GoldenAsker:
    """Asker of a language model's roles; safe for many at once on one event loop."""

    def __init__(self, llm: LLM, reply_format: ReplyFormat = "text", max_chars: int = MAX_OBSERVATION_CHARS) -> None:
        """Take the models, and how explorer and verifier reply (`task_manager.reply_format`; `tools` are asked as
        `text`)."""
        self._llm = llm
        self._asker = Asker(llm)
        self._format: ReplyFormat = "text" if reply_format == "tools" else reply_format
        self._max_chars = max_chars
        self._ways: dict[str, Callable[[Case, int], Awaitable[Any]]] = {
            "explorer/act": self._act,
            "verifier/solve": self._act,
            "synthesiser/tasks": self._tasks,
            "synthesiser/profile": self._profile,
            "judge/accept": self._accept,
            "judge/grade": self._grade,
            "attributor/steps": self._label,
        }

    async def ask(self, case: Case, seed: int = 0) -> Any:
        """Return what a role replies, as JSON-ready data; raises LLMError.
        Another `seed` is another reply, also with a cache."""
        return await self._ways.get(case.asked, self._distil)(case, seed)

    async def _act(self, case: Case, seed: int) -> Any:
        steps, left, chars, form = prompts.numbered(case.steps), case.steps_left, self._max_chars, self._format

        def prompt(room: int | None) -> Messages:
            if case.role is Role.VERIFIER:
                return prompts.solve(
                    case.opening, case.task, steps, steps_left=left, max_chars=chars, reply_format=form, room=room
                )
            return prompts.explore(
                *(case.opening, profile_of(case), case.phase, steps),
                steps_left=left,
                tried=case.tried,
                max_chars=chars,
                reply_format=form,
                room=room,
            )

        actor = Actor(self._asker, case.role, format_of(case.world), self._format)
        said = await actor.next(prompt, opening=case.opening, seed=seed)
        return {"thought": said.thought, "action": said.action}

    async def _tasks(self, case: Case, seed: int) -> Any:
        def prompt(room: int | None) -> Messages:
            return prompts.synthesise(
                *(case.opening, profile_of(case) or _UNKNOWN_WORLD, "", prompts.numbered(case.steps)),
                existing=case.existing,
                count=case.count,
                max_chars=self._max_chars,
                room=room,
            )

        reply = await self._asker.structured(Role.SYNTHESISER, prompt, TasksReply, seed=seed)
        return reply.model_dump()

    async def _profile(self, case: Case, seed: int) -> Any:
        def prompt(room: int | None) -> Messages:
            return prompts.draft_profile(
                case.opening, case.tools, prompts.numbered(case.steps), max_chars=self._max_chars, room=room
            )

        reply = await self._asker.structured(Role.SYNTHESISER, prompt, EnvProfile, temperature=0.3, seed=seed)
        return reply.model_dump()

    async def _accept(self, case: Case, seed: int) -> Any:
        attempt = None if case.attempt is None else prompts.numbered(case.attempt)

        def prompt(room: int | None) -> Messages:
            return prompts.accept(
                case.opening, case.task, prompts.numbered(case.steps), attempt, max_chars=self._max_chars, room=room
            )

        reply = await self._asker.structured(Role.JUDGE, prompt, AcceptReply, temperature=0.0, seed=seed)
        return reply.model_dump()

    async def _grade(self, case: Case, seed: int) -> Any:
        def prompt(room: int | None) -> Messages:
            steps = prompts.numbered(case.steps)
            return prompts.grade(
                case.opening, case.task, steps, reference=case.reference, mean_and_target=None, room=room
            )

        reply = await self._asker.structured(Role.JUDGE, prompt, GradeReply, temperature=0.0, seed=seed)
        return reply.model_dump()

    async def _label(self, case: Case, seed: int) -> Any:
        from advantage_processor.labels import LabelError, label_messages, read_some

        trajectory = Trajectory(
            Task("golden", "", query=case.task),
            group_id="golden",
            rollout_id=0,
            messages=[{"role": "system", "content": case.opening}, {"role": "user", "content": case.task}],
            steps=[
                Step(index, action, observation, 0.0, 0, 0, truncated=False, generate_s=0.0, env_s=0.0)
                for index, (action, observation) in enumerate(case.steps)
            ],
            stop_reason=StopReason.FINISHED,
            outcome=Outcome(float(case.success), case.success),
        )
        window = range(len(case.steps))
        messages = label_messages(trajectory, window, success=case.success, max_chars=self._max_chars)
        reply: Reply = await self._llm.chat(Role.ATTRIBUTOR, messages, temperature=0.0, seed=seed)
        try:
            found = read_some(reply.answer, window)
        except LabelError as error:
            raise LLMReplyError(str(error), reply.answer) from error
        labels = [found.labels.get(index) for index in window]
        return {"labels": [label and ("GOOD" if label.good else "BAD") for label in labels], "problem": found.problem}

    async def _distil(self, case: Case, seed: int) -> Any:
        from experience_manager import prompts as asked
        from experience_manager.attempts import Attempt
        from experience_manager.experience import Experience

        limits, kind = asked.Limits(self._max_chars, 3 * self._max_chars), case.asked.partition("/")[2]
        one = Attempt(
            "golden",
            "golden_0",
            case.opening,
            case.task,
            tuple(prompts.numbered(case.steps)),
            float(case.success),
            case.success,
        )
        shown = [Experience(advice.when_to_use, advice.content) for advice in case.experiences]
        if kind in ("success", "failure", "comparative"):
            other = Attempt(
                "golden", "golden_1", case.opening, case.task, tuple(prompts.numbered(case.worse)), 0.0, False
            )
            messages = asked.compare(one, other, 3, limits) if kind == "comparative" else asked.extract(one, 3, limits)
            return (await self._llm.structured(Role.SUMMARISER, messages, asked.Proposals, seed=seed)).model_dump()
        if kind == "validate":
            messages = asked.validate(shown, one, limits)
            judged = (await self._llm.structured(Role.SUMMARISER, messages, asked.Judgements, seed=seed)).of(len(shown))
            return {"judgements": [judgement and judgement.model_dump() for judgement in judged]}
        schema = asked.Order if kind == "rerank" else asked.Rewritten
        messages = (asked.rerank if kind == "rerank" else asked.rewrite)(case.opening, case.task, shown)
        return (await self._llm.structured(Role.SUMMARISER, messages, schema, seed=seed)).model_dump()


def profile_of(case: Case) -> EnvProfile | None:
    """Return the profile that comes with a case's world, None if none does."""
    try:
        return shipped_profile(case.world)
    except ProfileError:
        return None


# What the stand-in knows of the worlds.
_TEACHERS_WORLD = "pocket"
# That a reply came, in a form that can be read: asked of every case.
FORM = "answers in form"


@dataclass(frozen=True, slots=True)
class Answered:
    """One case, asked once: which of its checks hold, and what was replied; `problem` says why nothing was."""

    case: str
    role: str
    passed: dict[str, bool]
    reply: Any = None
    problem: str = ""


@dataclass(slots=True)
class Quality:
    """Everything that was answered; `skipped` names cases
    that a role could not be asked. Metrics are `LLM.metrics()`."""

    answered: list[Answered] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def shares(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return by role and check how often it held, and how often it was looked at."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for one in self.answered:
            for check, passed in one.passed.items():
                held, asked = found.get((one.role, check), (0, 0))
                found[one.role, check] = (held + passed, asked + 1)
        return found

    def share_of(self, role: str) -> float:
        """Return the share of all checks of a role that held."""
        counts = [count for (of, _), count in self.shares().items() if of == role]
        return sum(held for held, _ in counts) / sum(asked for _, asked in counts)


async def evaluate(llm: LLM, asker: GoldenAsker, cases: Sequence[Case], *, repeats: int = 1) -> Quality:
    """Return how the models of the roles do on cases, each asked so many times. Raises nothing of a model's."""
    quality, started = Quality(), time.perf_counter()
    asked = [
        case for case in cases if case.world == _TEACHERS_WORLD or llm.settings.endpoint(case.role).base_url != OFFLINE
    ]
    quality.skipped = [case.name for case in cases if case not in asked]
    quality.answered = list(
        await asyncio.gather(*(_answered(asker, case, repeat) for case in asked for repeat in range(repeats)))
    )
    quality.metrics, quality.seconds = llm.metrics(), time.perf_counter() - started
    return quality


async def _answered(asker: GoldenAsker, case: Case, seed: int) -> Answered:
    names = list(dict.fromkeys(check.name for check in case.checks))
    try:
        reply = await asker.ask(case, seed)
    except LLMError as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Answered(case.name, case.role.value, {FORM: False} | dict.fromkeys(names, False), problem=problem)
    passed = {name: all(check.holds(reply) for check in case.checks if check.name == name) for name in names}
    return Answered(case.name, case.role.value, {FORM: True} | passed, reply)


def print_quality(quality: Quality, *, least: float, failures: int = 20) -> int:
    """Print the tables and what failed; returns the exit status:
    0 if every role that was asked has at least the share `least`."""
    console = Console()
    checks = Table("role", "check", "held", "share")
    order = [role.value for role in Role]
    for (role, check), (held, asked) in sorted(quality.shares().items(), key=lambda item: order.index(item[0][0])):
        checks.add_row(role, escape(check), f"{held}/{asked}", f"{held / asked:.0%}")
    console.print(checks)
    roles = Table("role", "share", "calls", "prompt tokens", "reply tokens", "cost", "")
    below = []
    for role in (role for role in order if any(one.role == role for one in quality.answered)):
        share = quality.share_of(role)
        if share < least:
            below.append(role)
        of = {
            name: quality.metrics.get(f"llm/{role}/{name}", 0.0)
            for name in ("calls", "prompt_tokens", "completion_tokens", "cost")
        }
        counts = (
            f"{of['calls']:,.0f}",
            f"{of['prompt_tokens']:,.0f}",
            f"{of['completion_tokens']:,.0f}",
            f"{of['cost']:.4f}",
        )
        roles.add_row(role, f"{share:.0%}", *counts, f"below {least:.0%}" if share < least else "")
    console.print(roles)
    failed = [one for one in quality.answered if not all(one.passed.values())]
    for one in failed[:failures]:
        wrong = ", ".join(name for name, passed in one.passed.items() if not passed)
        said = one.problem or json.dumps(one.reply, ensure_ascii=False)
        console.print(
            f"{one.role} {one.case}: not {escape(wrong)}: {escape(said[:300])}", highlight=False, soft_wrap=True
        )
    if len(failed) > failures:
        console.print(f"... {len(failed) - failures} more (--out)")
    if quality.skipped:
        console.print(f"{len(quality.skipped)} cases were not asked: the built-in teacher knows the pocket world only")
    if not quality.answered:
        console.print("nothing was asked: no case is left for these roles and worlds")
        return 1
    return 1 if below else 0


def write_quality(quality: Quality, path: Path) -> None:
    """Write every reply, with the checks that held, as JSON."""
    write_json(path, asdict(quality) | {"shares": [[*key, *value] for key, value in quality.shares().items()]})
