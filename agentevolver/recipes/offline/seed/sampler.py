"""Samples whole episodes without a server: many at once on one thread, token by token with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from agentevolver.recipes.offline.seed.data import open_turn, opening_text
from agentevolver.recipes.offline.seed.syntax import COMPACT, Syntax
from env_service.base import BaseEnv, Message


@dataclass(slots=True)
class SampledRollout:
    """A sampled episode: its token ids, and for each whether it was sampled and its log-probability."""

    task_id: str
    ids: list[int]
    is_action: list[bool]
    logprobs: list[float]
    actions: list[str] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    reward: float = 0.0
    stop_reason: str = "context_full"


@dataclass(slots=True)
class _Row:
    env: BaseEnv
    out: SampledRollout
    turn: list[int] = field(default_factory=list)
    over: bool = False


class Sampler:
    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        syntax: Syntax = COMPACT,
        max_tokens: int | None = None,
    ) -> None:
        """An episode has at most `max_tokens` tokens; None: the syntax's limit."""
        self.model = model
        self.tokenizer = tokenizer
        self.end = int(tokenizer.eos_token_id)
        self.syntax = syntax
        self.max_turn_tokens = syntax.turn_tokens
        self.max_tokens = max_tokens or syntax.episode_tokens

    @torch.no_grad()
    def sample(
        self,
        episodes: Sequence[tuple[BaseEnv, Sequence[Message]]],
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> list[SampledRollout]:
        """Play one episode in each fresh instance, in order. Each instance comes with its opening messages.

        Log-probabilities are at `temperature`; at 0 the likeliest token is taken.
        """
        rows = [self._start(env, messages) for env, messages in episodes]
        alive = list(rows)
        first = min(len(row.out.ids) for row in rows)
        feed = torch.tensor([row.out.ids[:first] for row in rows])
        cache: Any = None
        position = first - 1
        while alive:
            output = self.model(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            logprobs = torch.log_softmax(output.logits[:, -1].float() / (temperature or 1.0), -1)
            chosen = (
                torch.multinomial(logprobs.exp(), 1, generator=generator)
                if temperature
                else logprobs.argmax(-1, keepdim=True)
            )
            values = logprobs.gather(1, chosen)[:, 0].tolist()
            for row, token, value in zip(alive, chosen[:, 0].tolist(), values, strict=True):
                if not row.over and position == len(row.out.ids) - 1:
                    self._take(row, token, value)
            position += 1
            left = [i for i, row in enumerate(alive) if not row.over]
            if len(left) <= 0.75 * len(alive):
                alive = [alive[i] for i in left]
                if alive:
                    cache.batch_select_indices(torch.tensor(left))
            feed = torch.tensor([[row.out.ids[min(position, len(row.out.ids) - 1)]] for row in alive])
        return [row.out for row in rows]

    def _start(self, env: BaseEnv, messages: Sequence[Message]) -> _Row:
        ids = self._encode(opening_text(messages, self.syntax))
        return _Row(env, SampledRollout(env.task_id, ids, [False] * len(ids), [0.0] * len(ids)))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _take(self, row: _Row, token: int, logprob: float) -> None:
        out = row.out
        out.ids.append(token)
        out.is_action.append(True)
        out.logprobs.append(logprob)
        if token != self.end:
            row.turn.append(token)
            if len(row.turn) < self.max_turn_tokens:
                return
        out.actions.append(self.tokenizer.decode(row.turn))
        result = row.env.step(self.syntax.read(self.tokenizer, row.turn))
        row.turn = []
        out.observations.append("\n".join(message["content"] for message in result["state"]))
        more = ([] if token == self.end else [self.end]) + self._encode(open_turn(result["state"], self.syntax))
        if result["is_terminated"] or len(out.ids) + len(more) + self.max_turn_tokens > self.max_tokens:
            row.over = True
            out.reward = row.env.evaluate()
            out.stop_reason = result["info"].get("stop_reason") or out.stop_reason
            return
        out.ids += more
        out.is_action += [False] * len(more)
        out.logprobs += [0.0] * len(more)
