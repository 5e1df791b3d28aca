"""Matching: find the earlier call that a request continues, by its messages.

The key of a message leaves out details that agents change when they repeat it: call ids, JSON whitespace, thoughts. A
request continues the call with which it shares the most messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from agentevolver.rollout.gateway.request import Message, arguments_of
from agentevolver.rollout.gateway.toolbox import Toolbox
from context_manager.reasoning import STYLES, without_thought
from context_manager.samples import ChainOpening

# Role, text, calls by name and arguments.
Key = tuple[str, str, tuple[tuple[str, bytes], ...]]
# Characters of a message shown in a `Difference`.
SHOWN_CHARS = 80


def key_of(message: Message) -> Key:
    role, content = message["role"], message["content"]
    if role != "assistant":
        return role, content, ()
    # Agents may drop thoughts from the history.
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
    """One call of the model. Its sampled ids are `ids[start:end]` of its chain.

    - `number`: index among the rollout's calls; `asked`: number of messages in its request.
    - `closed`: the ids include the turn's closing token.
    - `observation`: messages after it, None if none yet; `finished`: `time.perf_counter` at its end.
    - `seconds`, `waited`: time of the engine, then of the agent.
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
    """Calls that continue one another: their ids, which only grow, and the keys of their messages.

    - `opening`: replaces the beginning of the prompt in training samples.
    - `inherited`: number of first turns that belong to the chain it was forked from.
    - `busy`: a call at its end waits for a reply.
    """

    tools: Toolbox
    opening: ChainOpening | None = None
    ids: array[int] = field(default_factory=lambda: array("i"))
    keys: list[Key] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    inherited: int = 0
    busy: bool = False

    @property
    def own(self) -> list[Turn]:
        return self.turns[self.inherited :]

    def fork(self, turns: int, ids: int) -> Chain:
        """Return a chain with the first turns and ids of this one."""
        return Chain(self.tools, self.opening, self.ids[:ids], [], self.turns[:turns], turns)


@dataclass(frozen=True, slots=True)
class Match:
    """The turn that a request follows: `chain.turns[place]`. With `again`, the request repeats that turn."""

    chain: Chain
    place: int
    again: bool = False

    @property
    def turn(self) -> Turn:
        return self.chain.turns[self.place]

    @property
    def at_end(self) -> bool:
        """Whether the request may extend the chain itself. Otherwise the chain is forked."""
        return not self.again and self.place == len(self.chain.turns) - 1 and not self.chain.busy


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a new chain departs from the most similar chain: at message `place`, with `before` in the old chain and
    `after` in the request (`role: text`, shortened; "" where that conversation ends)."""

    place: int
    before: str
    after: str


def common(keys: Sequence[Key], others: Sequence[Key]) -> int:
    """Return the number of equal messages at the beginning of both conversations."""
    count = 0
    for one, other in zip(keys, others, strict=False):
        if one != other:
            break
        count += 1
    return count


def find(chains: Sequence[Chain], keys: Sequence[Key], tools: Toolbox) -> Match | None:
    """Return the turn that a request continues or repeats, or None.

    The match with the most common messages wins; of equal ones, first one that can be extended, then the earliest.
    """
    best, rank = None, (0, False)
    for chain in chains:
        # With other tools the prompt differs from its first token.
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
    """Return where a request departs from the most similar chain, or None if there is no chain yet."""
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
