"""Sites and their quirks, which experience can carry from one task to another.

A site is a number 0..31 with five hidden bits. The 16 train sites are the combinations of even parity, the held-out
sites those of odd parity.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from env_service.environments.pocket.calls import PocketCall
from env_service.environments.pocket.tools import AMOUNT, CONFIRM, DAY, HOUR, NAME, TOOLS, Param
from env_service.environments.pocket.wordings import PHRASES

N_SITES = 32
TRAIN_SITES = tuple(range(0, 16))
TEST_SITES = tuple(range(16, 24))
HARD_SITES = tuple(range(24, 32))
_USUAL = {t.name: t.params for t in TOOLS.values()}


@dataclass(frozen=True, slots=True)
class Quirks:
    """A site's deviations: `guard` (a guarded call needs its manual read, or a trailing `yes`; `none` stands for
    ignorance), `pay` and `plan` (the first argument of bank.pay and cal.add), `login` (whether bank and buying need the
    PIN), `look` (whether a product must be looked up before it is bought)."""

    guard: Literal["none", "doc", "yes"]
    pay: Literal["name", "amount"]
    login: Literal["pin", "open"]
    plan: Literal["name", "day"]
    look: Literal["first", "free"]


def _bits(combination: int) -> list[int]:
    return [combination >> i & 1 for i in range(5)]


def _arrange() -> tuple[Quirks, ...]:
    even = [c for c in range(32) if sum(_bits(c)) % 2 == 0]
    odd = [c for c in range(32) if sum(_bits(c)) % 2 == 1]
    # Splitting by the parity of the first two bits keeps every single bit balanced within the 8 sites of each half.
    halves = [[c for c in odd if (_bits(c)[0] ^ _bits(c)[1]) == side] for side in (0, 1)]
    rng = random.Random("pocket-sites-1")
    order = [c for block in (even, *halves) for c in rng.sample(block, len(block))]
    return tuple(
        Quirks(
            guard=("doc", "yes")[b[0]],
            pay=("name", "amount")[b[1]],
            login=("pin", "open")[b[2]],
            plan=("name", "day")[b[3]],
            look=("first", "free")[b[4]],
        )
        for b in map(_bits, order)
    )


_SITES = _arrange()


def quirks_of(site: int) -> Quirks:
    if not 0 <= site < N_SITES:
        raise ValueError(f"site k{site} does not exist: sites are k0 to k{N_SITES - 1}")
    return _SITES[site]


def site_hint_parts(site: int) -> dict[str, str]:
    return {quirk: PHRASES[quirk, str(value)] for quirk, value in asdict(quirks_of(site)).items()}


def site_hint(site: int) -> str:
    """Return one line with all quirks of a site; raises ValueError."""
    return " ; ".join(site_hint_parts(site).values())


def signature(tool: str, quirks: Quirks | None) -> tuple[Param, ...]:
    """Return a tool's parameters in a site's order; without quirks, in the usual order."""
    if quirks is None:
        return _USUAL[tool]
    if tool == "bank.pay" and quirks.pay == "amount":
        return (AMOUNT, NAME)
    if tool == "cal.add" and quirks.plan == "day":
        return (DAY, HOUR, NAME)
    if quirks.guard == "yes" and TOOLS[tool].guarded:
        return (*_USUAL[tool], CONFIRM)
    return _USUAL[tool]


def demands(tool: str, quirks: Quirks) -> tuple[str, ...]:
    out = []
    if quirks.login == "pin" and TOOLS[tool].needs_login:
        out.append("login first")
    if quirks.look == "first" and tool == "shop.buy":
        out.append("find first")
    return tuple(out)


def reorder(call: PocketCall, quirks: Quirks) -> PocketCall:
    usual = dict(zip((p.key for p in _USUAL[call.tool]), call.args, strict=False))
    usual[CONFIRM.key] = "yes"
    return PocketCall(call.tool, tuple(usual[p.key] for p in signature(call.tool, quirks) if p.key in usual))


def adapt(plan: Iterable[PocketCall], quirks: Quirks, pin: str, before: Sequence[PocketCall] = ()) -> list[PocketCall]:
    """Turn a plan that ignores quirks into one that works on a site.

    Manuals, logins and look-ups are inserted just before they are needed. `before`: calls that were already carried
    out.
    """
    out: list[PocketCall] = []
    seen = {(c.tool, c.args) for c in before}

    def need(call: PocketCall) -> None:
        if (call.tool, call.args) not in seen:
            out.append(call)
            seen.add((call.tool, call.args))

    for call in plan:
        if quirks.look == "first" and call.tool == "shop.buy":
            need(PocketCall("shop.find", call.args[:1]))
        if quirks.login == "pin" and TOOLS[call.tool].needs_login and ("bank.login", (pin,)) not in seen:
            need(PocketCall("me.pin"))
            need(PocketCall("bank.login", (pin,)))
        if quirks.guard == "doc" and TOOLS[call.tool].guarded:
            need(PocketCall("doc", (call.tool,)))
        ready = reorder(call, quirks)
        out.append(ready)
        seen.add((ready.tool, ready.args))
    return out
