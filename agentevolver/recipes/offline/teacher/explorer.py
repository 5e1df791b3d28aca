"""Explorer and verifier roles: the explorer discovers the world, the verifier solves a task step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentevolver.recipes.offline.teacher import app_proposals
from agentevolver.recipes.offline.teacher.calls import CHANGES, LOOKUPS, USUAL, TeacherCall, canonical, read_call
from agentevolver.recipes.offline.teacher.goals import Impossible, next_call, prepared
from agentevolver.recipes.offline.teacher.observed import ObservedEpisode, ObservedStep, see
from agentevolver.recipes.offline.teacher.prompt import NotUnderstood, Prompt, TeacherDraws
from agentevolver.recipes.offline.teacher.rules import RULES
from env_service.environments.pocket.wordings import DAYS

Weighted = tuple[TeacherCall, float]
_APPS = ("note", "cal", "mail", "bank", "shop")
# Weight of the tool in focus, and of other tools of its app.
_FOCUS, _FOCUS_APP = 6.0, 2.0
# The manuals that state each rule of a site.
_MANUALS = {
    "guard": ("note.tag", "note.del", "cal.move", "cal.del", "mail.del", "shop.ret"),
    "pay": ("bank.pay",),
    "plan": ("cal.add",),
} | {"login": ("bank.pay", "shop.buy", "bank.bal"), "look": ("shop.buy",)}


def explore(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any] | str:
    """`explorer/act`: the next action. It visits each app, then goes deeper, and does what errors ask for."""
    phase = prompt.text("phase").strip()
    if phase not in ("breadth", "depth"):
        raise NotUnderstood(f"explorer/act: <phase> must be breadth or depth, not {phase[:40]!r}")
    prompt.text("opening")
    seen = see(prompt.sections, prompt.steps())
    has_goals = app_proposals.MARK in prompt.sections.get("profile", "")
    candidates = _for_goals(seen) if has_goals else _candidates(seen, phase)
    thought, call = _explorers_choice(seen, phase, candidates, _tried(prompt), draws, prompt.focus)
    return said(thought, str(call), prompt, draws)


def solve(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any] | str:
    """`verifier/solve`: the next action towards the task, from the transcript."""
    intent = prompt.intent()
    prompt.text("opening")
    seen = see(prompt.sections, prompt.steps())
    thought = "the next thing that the task needs"
    try:
        call = next_call(intent, seen)
    except Impossible as error:
        thought, call = f"{error}, so it cannot be done", TeacherCall("done")
    refusals = [step.observation for step in seen.steps if step.call == call and step.failed]
    if len(refusals) > len(set(refusals)):
        thought, call = "this was refused twice for the same reason", TeacherCall("done")
    if draws.errs(draws.rates.slips) and (others := [c for c, _ in _lookups(seen) if c != call]):
        draws.plant("slip", action=str(call))
        call = draws.rng.choice(others)
    return said(thought, str(call), prompt, draws)


def said(thought: str, action: str, prompt: Prompt, draws: TeacherDraws) -> dict[str, Any] | str:
    """Return an action in the requested form. With `is_sent`, a planted mistake is a message without an action."""
    if not prompt.is_sent:
        return {"thought": thought, "action": action}
    if draws.errs(draws.rates.malformed):
        draws.plant("malformed", how="prose")
        return "I looked at this carefully, and I would say that it is as one would expect."
    return f"<think>{thought}</think>{action}"


def _tried(prompt: Prompt) -> set[TeacherCall]:
    lines = prompt.sections.get("tried", "").splitlines()
    return {call for line in lines if not line.endswith(" times)") and (call := read_call(line)) is not None}


def _explorers_choice(
    seen: ObservedEpisode,
    phase: str,
    candidates: Iterable[Weighted],
    tried: set[TeacherCall],
    draws: TeacherDraws,
    focus: str,
) -> tuple[str, TeacherCall]:
    if (fix := _pending(seen)) is not None:
        return "the last answer says what this call wants", fix
    known = {tool for tool in seen.tools if tool in USUAL}
    if not known:
        return "first of all, what there is", _manual_walk(seen)
    done = {step.call for step in seen.steps if step.call is not None}
    # Known rules are followed, not discovered again by a refusal.
    ready = [
        (prepared(c, seen), w * _liked(c, focus))
        for c, w in candidates
        if c not in done and (c.tool in known or c.tool == "doc")
    ]
    fresh = [(c, w) for c, w in ready if c not in done]
    untried = [(c, w) for c, w in fresh if c not in tried]
    choice = untried or fresh
    if not choice:
        return "nothing new is left", TeacherCall("doc")
    call: TeacherCall = draws.pick(choice)
    return ("look around" if phase == "breadth" else "follow what was found"), call


def _liked(call: TeacherCall, focus: str) -> float:
    if not focus:
        return 1.0
    return (
        _FOCUS if call.tool == focus or focus in call.args else _FOCUS_APP if focus.startswith(f"{call.app}.") else 1.0
    )


def _pending(seen: ObservedEpisode) -> TeacherCall | None:
    """Return the call that the latest refusal asks for, unless that was refused too."""
    refused: set[TeacherCall] = set()
    for step in reversed(seen.steps):
        # A call refused before a manual, a login or a look-up may be allowed after it.
        opened = any(
            later.index > step.index and not later.failed and later.call in _openers(seen) for later in seen.steps
        )
        if step.failed and step.call is not None and not opened:
            refused.add(step.call)
    for step in reversed(seen.steps):
        if step.failed and step.call is not None and step.call.tool in CHANGES | LOOKUPS and _teaches(seen, step):
            wanted = canonical(step.call)
            if any(
                later.call is not None and not later.failed and canonical(later.call) == wanted for later in seen.steps
            ):
                return None
            if any(word.isupper() for word in wanted):
                return None
            call = prepared(TeacherCall(wanted[0], wanted[1:]), seen)
            return None if call in refused or call in seen.worked else call
    return None


def _openers(seen: ObservedEpisode) -> set[TeacherCall]:
    return {call for call in seen.worked if call.tool in ("bank.login", "doc", "shop.find")}


def _teaches(seen: ObservedEpisode, step: ObservedStep) -> bool:
    return any(evidence.step == step.index for evidence in seen.rules.evidence.values())


def _manual_walk(seen: ObservedEpisode) -> TeacherCall:
    for step in reversed(seen.steps):
        if step.observation.startswith("apps "):
            read = {s.call.args[0] for s in seen.steps if s.call is not None and s.call.tool == "doc" and s.call.args}
            left = [app for app in step.observation.split()[1:] if app not in read]
            return TeacherCall("doc", (left[0],)) if left else TeacherCall("doc")
    return TeacherCall("doc")


def _candidates(seen: ObservedEpisode, phase: str) -> Iterator[Weighted]:
    if phase == "breadth":
        touched = [step.call.app for step in seen.steps if step.call is not None]
        least = min(touched.count(app) for app in _APPS)
        new = {app for app in _APPS if touched.count(app) == least}
        found = [(call, weight) for call, weight in _lookups(seen) if call.app in new]
        yield from found or _lookups(seen)
        return
    yield from _lookups(seen)
    yield from _probes(seen)


def _lookups(seen: ObservedEpisode) -> Iterator[Weighted]:
    """Yield look-ups with their weights; those that show more weigh more. What was seen already is left out."""
    facts, words = seen.facts, seen.words
    met = {row[1] for row in facts.rows["cal"].values()}
    things = {row[1] for table in ("note", "order") for row in facts.rows[table].values()} | {
        r[2] for r in facts.rows["mail"].values()
    }
    for tag in words.get("TAG", []):
        yield TeacherCall("note.list", (tag,)), 1.8
    for day in words.get("DAY", list(DAYS)):
        yield TeacherCall("cal.list", (day,)), 1.8
    yield TeacherCall("shop.orders"), 4.0
    yield TeacherCall("bank.bal"), 4.0
    names = words.get("NAME") or sorted(met)
    for name in names:
        if name not in met:
            yield TeacherCall("mail.find", (name,)), 10.0 / len(names)
            yield TeacherCall("cal.find", (name,)), 4.0 / len(names)
    new = [word for word in words.get("WORD", []) if word not in things]
    for word in new:
        yield TeacherCall("shop.find", (word,)), 12.0 / len(new)
        yield TeacherCall("note.find", (word,)), 2.0 / len(new)


def _probes(seen: ObservedEpisode) -> Iterator[Weighted]:
    """Yield calls that reveal the site's rules: manuals, and changes that may be refused."""
    facts, rules, words = seen.facts, seen.rules, seen.words
    unknown = [rule for rule in RULES if rules.get(rule) is None]
    for rule in unknown:
        for tool in _MANUALS[rule]:
            yield TeacherCall("doc", (tool,)), 6.0 / len(_MANUALS[rule])
    people = words.get("NAME", [])[:1] or [row[1] for row in facts.rows["cal"].values()][:1]
    for name in people:
        yield TeacherCall("bank.pay", (name, "2")), 3.0 if "pay" in unknown or "login" in unknown else 0.3
        yield TeacherCall("cal.add", (name, "wed", "9")), 3.0 if "plan" in unknown else 0.2
    guard = 2.0 if "guard" in unknown else 0.3
    for table, tool in (("note", "note.del"), ("cal", "cal.del"), ("mail", "mail.del"), ("order", "shop.ret")):
        for key in list(facts.rows[table])[:1]:
            if key not in seen.touched:
                yield TeacherCall(tool, (key,)), guard
    for key, row in list(facts.rows["note"].items())[:1]:
        for tag in [tag for tag in words.get("TAG", []) if tag != row[2]][:1]:
            yield TeacherCall("note.tag", (key, tag)), 0.5
    for key, row in list(facts.rows["cal"].items())[:1]:
        yield TeacherCall("cal.move", (key, "fri" if row[2] != "fri" else "mon")), 0.5
    for word, product in facts.products.items():
        if product is not None:
            yield TeacherCall("shop.buy", (word, "1")), 4.0 if "look" in unknown else 0.5


def _for_goals(seen: ObservedEpisode) -> Iterator[Weighted]:
    """Yield calls that show what goals with links need: senders and subjects of mails, products, meetings, notes and
    the site's rules. None of them changes the world, because facts must hold at the start of the episode."""
    facts, rows = seen.facts, seen.facts.rows
    for row in rows["mail"].values():
        if row[2] not in facts.products:
            yield TeacherCall("shop.find", (row[2],)), 40.0
    known = {row[1] for table in ("cal", "mail") for row in rows[table].values()}
    names = [name for name in seen.words.get("NAME", []) if name not in known]
    for name in names:
        yield TeacherCall("mail.find", (name,)), (48.0, 12.0, 4.0)[min(2, len(rows["mail"]))] / len(names)
    for day in DAYS:
        yield TeacherCall("cal.list", (day,)), (5.0, 2.5, 1.0)[min(2, len(rows["cal"]))]
    for tag in seen.words.get("TAG", []):
        yield TeacherCall("note.list", (tag,)), 0.5 if rows["note"] else 2.5
    for rule in RULES:
        if seen.rules.get(rule) is None:
            for tool in _MANUALS[rule]:
                yield TeacherCall("doc", (tool,)), 8.0 / len(_MANUALS[rule])
    if seen.rules.get("login") == "pin" and facts.pin is None:
        yield TeacherCall("me.pin"), 8.0
    yield TeacherCall("shop.orders"), 1.0
    yield TeacherCall("bank.bal"), 1.0
