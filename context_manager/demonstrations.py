"""Demonstrations: recorded conversations as token ids, for supervised training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from context_manager.chat import ChatRenderer


@dataclass(frozen=True, slots=True)
class DemonstrationTokens:
    """Ids of one conversation. The mask is 1 on the assistant's tokens, but for messages with the weight 0."""

    ids: list[int]
    mask: list[int]


def demonstration(renderer: ChatRenderer, messages: Sequence[Mapping[str, Any]]) -> DemonstrationTokens:
    """Render a conversation as a rollout of the policy would be.

    Raises ValueError if the assistant speaks first, twice in a row, or never with a weight; ChatTemplateError.
    """
    said = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not said or said[0] == 0:
        raise ValueError("the conversation needs an assistant message after another message")
    weights = [int(messages[place].get("weight", 1)) for place in said]
    if not any(weights):
        raise ValueError("all messages of the assistant have the weight 0")
    plain = [{key: value for key, value in message.items() if key != "weight"} for message in messages]
    ids = renderer.opening(plain[: said[0]])
    mask = [0] * len(ids)
    for place, following, weight in zip(said, [*said[1:], None], weights, strict=True):
        sampled, calls = renderer.reply(plain[place]), plain[place].get("tool_calls") or ()
        ids += sampled
        mask += [weight] * len(sampled)
        if following is None:
            break
        if following == place + 1:
            raise ValueError(f"messages {place} and {following} are both the assistant's")
        closed = renderer.closes_turn(sampled, calls)
        told = renderer.continuation(plain[place + 1 : following], closed=closed, calls=calls)
        ids += told
        mask += [0] * len(told)
    return DemonstrationTokens(ids, mask)
