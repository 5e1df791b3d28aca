"""Puts the golden set to the roles' models, and says how they did: shares of passed checks by role and check, tokens
and cost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentevolver.golden.asking import GoldenAsker
from agentevolver.golden.cases import Case
from agentevolver.llm.client import LLM
from agentevolver.llm.errors import LLMError
from agentevolver.llm.settings import OFFLINE, Role
from agentevolver.utils.files import write_json

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
    """Everything that was answered; `skipped` names cases that a role could not be asked. Metrics are
    `LLM.metrics()`."""

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
    """Print the tables and what failed; returns the exit status: 0 if every role that was asked has at least the share
    `least`."""
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
