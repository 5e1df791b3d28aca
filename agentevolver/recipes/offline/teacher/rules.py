"""Rules of a site, as the teacher learns them from observations."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from agentevolver.recipes.offline.teacher.calls import GUARDED, NEED_LOGIN, TeacherCall, read_usage
from env_service.environments.pocket.wordings import DAYS

RULES: dict[str, tuple[str, str]] = {
    "guard": ("doc", "yes"),
    "pay": ("name", "amount"),
    "login": ("pin", "open"),
    "plan": ("name", "day"),
    "look": ("first", "free"),
}
OCCASIONS: dict[str, str] = {
    "guard": "tag or delete a note , move or cancel a meeting , delete a mail or return an order",
    "pay": "pay or give coins to somebody",
    "login": "pay somebody , buy a product or read the balance",
    "plan": "plan or add a meeting",
    "look": "buy or order a product",
}
_TOOLS_OF = {"guard": GUARDED, "pay": {"bank.pay"}, "login": NEED_LOGIN, "plan": {"cal.add"}, "look": {"shop.buy"}}
_ERRORS: tuple[tuple[str, str, str], ...] = (
    (r"err read doc \S+ first", "guard", "doc"),
    (r"err add yes at the end", "guard", "yes"),
    (r"err login first", "login", "pin"),
    (r"err find \S+ first", "look", "first"),
)
# Other wordings of the rules, by people and models; read, never written.
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (r"\b(read|call)\b.*\bdoc\b.*\b(before|first)|\bneed doc\b|\bread its doc\b|\bread doc\b", "guard", "doc"),
    (r"\byes\b", "guard", "yes"),
    (r"bank\.pay name amount|name then amount|bank\.pay wants the name first", "pay", "name"),
    (r"bank\.pay amount name|amount then name|bank\.pay wants the amount first|amount before name", "pay", "amount"),
    (r"no login|without login|do not login", "login", "open"),
    (r"\blogin\b", "login", "pin"),
    (r"cal\.add name day hour|name day hour|cal\.add wants the name first", "plan", "name"),
    (r"cal\.add day hour name|day hour name|cal\.add wants the name last", "plan", "day"),
    (r"buy without find|no need to find|do not find|buy works at once", "look", "free"),
    (r"\bfind\b.*\b(before|first)\b|\bneeds shop\.find\b|before you buy", "look", "first"),
)


@dataclass(frozen=True, slots=True)
class RuleEvidence:
    """The step at which a rule was learnt, and how: by an error, a manual or a call that worked (`success`)."""

    step: int
    by: str


@dataclass(slots=True)
class SiteRules:
    values: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, RuleEvidence] = field(default_factory=dict)

    def get(self, rule: str) -> str | None:
        return self.values.get(rule)

    def copy(self) -> SiteRules:
        return SiteRules(dict(self.values), dict(self.evidence))

    def note(self, rule: str, value: str, step: int, by: str) -> None:
        """Set a rule. Errors and manuals replace a known value; a call that worked does not."""
        if by == "success" and rule in self.values:
            return
        if self.values.get(rule) != value:
            self.evidence[rule] = RuleEvidence(step, by)
        self.values[rule] = value

    def learn(
        self, step: int, call: TeacherCall, observation: str, before: set[TeacherCall], *, complete: bool
    ) -> None:
        """Learn from one step. `before` holds the calls that worked earlier; `complete` says that none is missing from
        it."""
        if observation.startswith("err"):
            for pattern, rule, value in _ERRORS:
                if re.match(pattern, observation):
                    self.note(rule, value, step, "error")
            self._learn_usage(observation, step, "error")
        elif call.tool == "doc" and observation.startswith("use "):
            self._learn_usage(observation, step, "manual")
            self._learn_demands(call.args[0] if call.args else "", observation, step)
        elif observation.startswith(("ok", "balance")):
            self._learn_success(call, step, before, complete=complete)

    def _learn_usage(self, text: str, step: int, by: str) -> None:
        shown = read_usage(text)
        if kinds := shown.get("bank.pay"):
            self.note("pay", "amount" if kinds[0] == "AMOUNT" else "name", step, by)
        if kinds := shown.get("cal.add"):
            self.note("plan", "day" if kinds[0] == "DAY" else "name", step, by)
        for tool in GUARDED & shown.keys():
            self.note("guard", "yes" if "yes" in shown[tool] else "doc", step, by)

    def _learn_demands(self, tool: str, text: str, step: int) -> None:
        demands = text.split(" , ")[1:]
        if tool in NEED_LOGIN:
            self.note("login", "pin" if "login first" in demands else "open", step, "manual")
        if tool == "shop.buy":
            self.note("look", "first" if "find first" in demands else "free", step, "manual")

    def _learn_success(self, call: TeacherCall, step: int, before: set[TeacherCall], *, complete: bool) -> None:
        if call.tool == "bank.pay" and call.args:
            self.note("pay", "amount" if call.args[0].isdigit() else "name", step, "success")
        elif call.tool == "cal.add" and call.args:
            self.note("plan", "day" if call.args[0] in DAYS else "name", step, "success")
        elif call.tool in GUARDED:
            self.note("guard", "yes" if call.args[-1:] == ("yes",) else "doc", step, "success")
        if not complete:
            return
        if call.tool in NEED_LOGIN and not any(c.tool == "bank.login" for c in before):
            self.note("login", "open", step, "success")
        if call.tool == "shop.buy" and not any(c.tool == "shop.find" and c.args == call.args[:1] for c in before):
            self.note("look", "free", step, "success")


def concerns(rule: str, tools: set[str]) -> bool:
    return bool(_TOOLS_OF[rule] & tools)


def rules_in(text: str) -> dict[str, str]:
    """Return the rules that a text states, in any wording that the teacher understands. A rule with contradicting
    values is left out."""
    found: dict[str, set[str]] = {}
    for part in re.split(r"\s*;\s*|\n+-?\s*|\s+\.\s+", text.lower()):
        taken: set[str] = set()
        for pattern, rule, value in _MEANINGS:
            if rule not in taken and re.search(pattern, part):
                taken.add(rule)
                found.setdefault(rule, set()).add(value)
    return {rule: values.pop() for rule, values in found.items() if len(values) == 1}
