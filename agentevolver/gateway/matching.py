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

from agentevolver.gateway.request import Message, arguments_of
from agentevolver.gateway.toolbox import Toolbox
from context_manager.reasoning import STYLES, without_thought
from context_manager.samples import Opening

# Role, text, calls by name and arguments.
Key = tuple[str, str, tuple[tuple[str, bytes], ...]]
# Characters of a message that are shown where two tellings differ.
SHOWN_CHARS = 80


def key_of(message: Message) -> Key:
    """Return what two tellings of one message have in common."""
    role, content = message["role"], message["content"]
    if role != "assistant":
        return role, content, ()
    if "think>" in content:
        content = without_thought(content, STYLES["think"])
    calls = message.get("tool_calls") or ()
    return role, content.strip(), tuple([_call_key(call["function"]) for call in calls])


def _call_key(function: dict[str, Any]) -> tuple[str, bytes]:
    try:
        return function["name"], orjson.dumps(arguments_of(function["arguments"]), option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # nested too deeply
        return function["name"], function["arguments"].encode()


@dataclass(slots=True)
class Turn:
    """One call: its sampled ids are `ids[start:end]` of its chain. `asked` is how many messages its request had,
    `calls` are the tool calls of the reply (OpenAI's form), `closed` says that the ids hold the turn's closing token.

    `number` counts the calls of the rollout; `observation` is what was said after it (None: nothing yet); `finished` is
    a time of `time.perf_counter`, `seconds` and `waited` are what the engine and then the agent took.
    """

    number: int
    start: int
    end: int
    asked: int
    calls: list[dict[str, Any]]
    closed: bool
    log_probs: array[float]
    truncated: bool
    seconds: float
    finished: float
    observation: str | None = None
    waited: float = 0.0


@dataclass(slots=True, eq=False)
class Chain:
    """Calls that go on from one another: their ids, which only ever grow, and the keys of their messages.

    The first `inherited` turns were sampled on another chain, from which this one forked. `opening` is what training
    puts in another's place. `busy`: a call that goes on from the end of it waits for its reply.
    """

    tools: Toolbox
    opening: Opening | None = None
    ids: array[int] = field(default_factory=lambda: array("i"))
    keys: list[Key] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    inherited: int = 0
    busy: bool = False

    @property
    def own(self) -> list[Turn]:
        """The turns that were sampled on this chain."""
        return self.turns[self.inherited :]

    def fork(self, turns: int, ids: int) -> Chain:
        """Return a chain that has the first turns and ids of this one."""
        return Chain(self.tools, self.opening, self.ids[:ids], [], self.turns[:turns], turns)


@dataclass(frozen=True, slots=True)
class Match:
    """Match of a request: where it goes on from: a chain, and the place of a turn on it; `again`:
    the turn's own request is asked once more."""

    chain: Chain
    place: int
    again: bool = False

    @property
    def turn(self) -> Turn:
        """The turn."""
        return self.chain.turns[self.place]

    @property
    def at_end(self) -> bool:
        """Whether the chain may grow by the request."""
        return not self.again and self.place == len(self.chain.turns) - 1 and not self.chain.busy


@dataclass(frozen=True, slots=True)
class Difference:
    """Why a chain began: the first message that its request has otherwise than the chain that it has most in common
    with. `before` and `after` are `role: text`, cut; empty where one of them ends there."""

    place: int
    before: str
    after: str


def common(keys: Sequence[Key], others: Sequence[Key]) -> int:
    """Return how many messages two conversations begin with in common."""
    count = 0
    for one, other in zip(keys, others, strict=False):
        if one != other:
            break
        count += 1
    return count


def find(chains: Sequence[Chain], keys: Sequence[Key], tools: Toolbox) -> Match | None:
    """Return the call that a request goes on from, None if there is none.

    Of calls with as many messages in common, one at the end of a chain that nobody goes on from now is taken before
    others, then the earliest.
    """
    best, rank = None, (0, False)
    for chain in chains:
        if chain.tools is tools and (found := _within(chain, keys)) is not None:
            asked = chain.turns[found.place].asked
            its_rank = (asked if found.again else asked + 1, found.at_end)
            if its_rank > rank:
                best, rank = found, its_rank
    return best


def _within(chain: Chain, keys: Sequence[Key]) -> Match | None:
    shared = common(keys, chain.keys)
    for place in range(len(chain.turns) - 1, -1, -1):
        asked = chain.turns[place].asked
        if asked < shared:
            return Match(chain, place)
        if asked == shared == len(keys):
            return Match(chain, place, again=True)
    return None


def difference(chains: Sequence[Chain], keys: Sequence[Key]) -> Difference | None:
    """Return why a request begins a chain, None for the first one."""
    if not chains:
        return None
    near = max(chains, key=lambda chain: common(keys, chain.keys))
    place = common(keys, near.keys)
    before, after = (_said(one[place]) if place < len(one) else "" for one in (near.keys, keys))
    return Difference(place, before, after)


def _said(key: Key) -> str:
    role, text, calls = key
    said = f"{text} {', '.join(name for name, _ in calls)}" if calls else text
    return f"{role}: {said[:SHOWN_CHARS]}"
