"""Matching: which earlier call a request goes on from, by what its messages say.

A message's key leaves out how it was told: ids of calls, the spelling of their JSON, thoughts that an agent may keep or
leave out. A request goes on from the call after which it has the most messages in common.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from agentevolver.gateway.request import Message
from context_manager.reasoning import STYLES, without_thought

Key = tuple[str, str, tuple[tuple[str, str | bytes], ...]]


def key_of(message: Message) -> Key:
    """Return what two tellings of one message have in common."""
    role, content = message["role"], message["content"]
    if role != "assistant":
        return role, content, ()
    if "think>" in content:
        content = without_thought(content, STYLES["think"])
    calls = message.get("tool_calls") or ()
    return role, content.strip(), tuple([_call_key(call["function"]) for call in calls])


def _call_key(function: dict[str, Any]) -> tuple[str, str | bytes]:
    arguments = function["arguments"].strip()
    try:
        value = orjson.loads(arguments or "{}")
        return function["name"], orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return function["name"], arguments


@dataclass(slots=True)
class Turn:
    """One call of a chain: its sampled ids are `chain.ids[start:end]`; it answered the first `asked` of the chain's
    messages and is the next one; `number` counts the calls of the rollout."""

    number: int
    start: int
    end: int
    asked: int
    closed: bool
    log_probs: array[float]
    text: str
    truncated: bool
    seconds: float
    finished: float
    calls: list[dict[str, Any]]
    observation: str | None = None
    waited: float = 0.0


@dataclass(slots=True)
class Chain:
    """Calls that go on from one another: their ids, which only ever grow, and the keys of their messages.

    The first `inherited` turns were sampled on another chain, from which this one forked. `opening` is how its ids
    begin and `training` what stands in that place in its sample; None: the same.
    """

    tools: bytes
    keys: list[Key]
    ids: array[int]
    turns: list[Turn] = field(default_factory=list)
    opening: Sequence[int] = ()
    training: Sequence[int] | None = None
    inherited: int = 0
    busy: bool = False

    @property
    def own(self) -> list[Turn]:
        """The turns that were sampled on this chain."""
        return self.turns[self.inherited :]


@dataclass(frozen=True, slots=True)
class Match:
    """Where a request goes on from: a chain, and the place of a turn on it; `again`: the turn's own request is asked
    once more."""

    chain: Chain
    turn: int
    again: bool = False


def common(keys: Sequence[Key], others: Sequence[Key]) -> int:
    """Return how many messages two conversations begin with in common."""
    count = 0
    for one, other in zip(keys, others, strict=False):
        if one != other:
            break
        count += 1
    return count


def find(chains: Sequence[Chain], keys: Sequence[Key], tools: bytes) -> Match | None:
    """Return the call that a request goes on from, None if there is none.

    Of calls with as many messages in common, one that ends a chain which nobody goes on from now is taken before
    others, then the earliest.
    """
    best: Match | None = None
    rank = (0, False)
    for chain in chains:
        if chain.tools != tools:
            continue
        shared = common(keys, chain.keys)
        for place in range(len(chain.turns) - 1, -1, -1):
            turn = chain.turns[place]
            if turn.asked + 1 <= shared and turn.asked + 1 < len(keys):
                found = Match(chain, place), (2 * turn.asked + 2, place == len(chain.turns) - 1 and not chain.busy)
            elif turn.asked == shared == len(keys):
                found = Match(chain, place, again=True), (2 * turn.asked + 1, False)
            else:
                continue
            if found[1] > rank:
                best, rank = found
            break
    return best
