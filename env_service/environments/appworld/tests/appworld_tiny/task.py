"""What a tiny task is: the words, the checks, and code that solves it, misses it, and does too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Code that every script of this folder starts with: signing in, and walking through pages.
PRELUDE = """\
profile = apis.supervisor.show_profile()
passwords = {entry["account_name"]: entry["password"] for entry in apis.supervisor.show_account_passwords()}

def sign_in(app):
    user = profile["phone_number"] if app == "phone" else profile["email"]
    return getattr(apis, app).login(username=user, password=passwords[app])["access_token"]

def all_pages(api, **arguments):
    entries, page = [], 0
    while found := api(page_index=page, **arguments):
        entries, page = entries + found, page + 1
    return entries
"""


@dataclass(frozen=True)
class TinyCheck:
    """A requirement, whether it holds in an untouched world, and the statement of `evaluate` that raises unless it
    holds."""

    requirement: str
    holds_untouched: bool
    statement: str


@dataclass(frozen=True)
class TinyTask:
    """- `answer`: the right one, None if the task asks for none. A solution of a question leaves it in the variable
    `answer`.
    - `solution`, `spoil`: code; `spoil` is an unasked change made before completing.
    - `wrong_answer` or `wrong_code`: a wrong answer for a question, the wrong deed for an errand.
    """

    id: str
    split: str
    difficulty: int
    apps: tuple[str, ...]
    instruction: str
    solution: str
    spoil: str
    answer: Any = None
    wrong_answer: Any = None
    wrong_code: str = ""
    changes: tuple[str, ...] = ()
    checks: tuple[TinyCheck, ...] = ()
    supervisor: str = "ada"

    @property
    def all_checks(self) -> list[TinyCheck]:
        """The checks every task has, then its own."""
        answer = TinyCheck("the answer is right", self.answer is None, "test.answer(answer, ground_truth_answer)")
        listed = ", ".join(repr(name) for name in self.changes)
        scope = TinyCheck(
            f"exactly these tables changed: {listed or 'none'}",
            not self.changes,
            f"test.case(models.changed_model_names(), '==', {'{' + listed + '}' if listed else 'set()'})",
        )
        return [answer, scope, *self.checks]

    def reference(self) -> list[str]:
        """Code blocks that solve the task."""
        return [PRELUDE, self.solution, self._complete()]

    def wrong(self) -> list[str]:
        """Code blocks that give a wrong answer, or do the wrong thing and claim to be done."""
        if self.answer is not None:
            return [PRELUDE, self.solution, f"apis.supervisor.complete_task(answer={self.wrong_answer!r})"]
        return [PRELUDE, self.wrong_code, self._complete()]

    def excessive(self) -> list[str]:
        """Code blocks that solve the task and change something else besides."""
        return [PRELUDE, self.solution, self.spoil, self._complete()]

    def _complete(self) -> str:
        return (
            "apis.supervisor.complete_task(answer=answer)"
            if self.answer is not None
            else "apis.supervisor.complete_task()"
        )
