"""An engine that says what it is told to, and rollouts on it."""

import asyncio
import functools
from dataclasses import dataclass, field

from agentevolver.rollout.engine import EngineError, Generated
from agentevolver.rollout.gateway.request import GatewayRequest
from agentevolver.rollout.gateway.rollout import GatewayRollout
from context_manager.settings import ContextLimits
from tests.chat_tokenizers import CHATML, build_tokenizer

ROOMY = ContextLimits(20_000, 20_000, 40_000, 256, 400)


@functools.cache
def tokenizer():
    return build_tokenizer(CHATML, "<|im_end|>")


def encoded(text, *, closed=True):
    ids = tokenizer().encode(text, add_special_tokens=False)
    return [*ids, tokenizer().eos_token_id] if closed else ids


@dataclass
class ScriptedEngine:
    """Says the next of `replies` (texts, ids, or errors to raise), the last one over and over; `calls` are (prompt,
    sampled, sampling parameters). While `gate` is not set, replies wait for it."""

    replies: list = field(default_factory=lambda: ["well"])
    calls: list = field(default_factory=list)
    gate: asyncio.Event | None = None
    waiting: int = 0

    async def generate(self, request_id, prompt_ids, sampling_params):
        number = len(self.calls)
        reply = self.replies[min(number, len(self.replies) - 1)]
        self.calls.append((list(prompt_ids), reply, dict(sampling_params)))
        prompt_ids.clear()  # what was handed out is the engine's: nobody may rely on it any more
        if self.gate is not None:
            self.waiting += 1
            try:
                await self.gate.wait()
            finally:
                self.waiting -= 1
        if isinstance(reply, Exception):
            raise reply
        ids = (encoded(reply) if isinstance(reply, str) else list(reply))[: sampling_params["max_tokens"]]
        self.calls[number] = (*self.calls[number][:1], ids, dict(sampling_params))
        return Generated(ids, [-(number + i / 1000) for i in range(len(ids))], 1, 1)


def failing(times, then="well"):
    return ScriptedEngine([*(EngineError("no engine") for _ in range(times)), then])


def rollout(renderer, engine=None, tool_format=None, limits=ROOMY, **options):
    sampling = {"temperature": 0.7}
    return GatewayRollout(engine or ScriptedEngine(), renderer, tool_format, limits, sampling, "r", **options)


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def asked(*messages, **fields):
    return GatewayRequest([dict(message) for message in messages], **fields)
