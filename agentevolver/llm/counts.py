"""Counts and latencies of a role's calls, for the metrics of a training step."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

CHARS_PER_TOKEN = 4
_LATENCIES = 4096


@dataclass(slots=True)
class RoleCounts:
    """What happened to a role's calls since the start.

    `prompt_tokens`, `completion_tokens` and `cost` are all that was billed, `unusable` how many billed replies could
    not be used; `answered_*` are of usable replies alone, for estimates. Latencies are those of the latest calls'
    successful tries, in seconds.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_chars: int = 0
    cost: float = 0.0
    errors: int = 0
    repairs: int = 0
    retries: int = 0
    cached: int = 0
    unusable: int = 0
    answered_prompt_tokens: int = 0
    answered_tokens: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))

    def estimate(self, chars: int) -> tuple[int, int]:
        """Return (prompt, completion) tokens to expect of a prompt of so many characters, going by the calls so far."""
        per_char = self.answered_prompt_tokens / self.prompt_chars if self.prompt_chars else 1 / CHARS_PER_TOKEN
        return math.ceil(chars * per_char), self.answered_tokens // self.calls if self.calls else 0

    def metrics(self) -> dict[str, float]:
        """Return the counts by name."""
        out = {
            name: float(getattr(self, name))
            for name in (
                "calls",
                "prompt_tokens",
                "completion_tokens",
                "cost",
                "errors",
                "repairs",
                "retries",
                "cached",
                "unusable",
            )
        }
        if self.latencies:
            ordered = sorted(self.latencies)
            out["latency_mean"] = math.fsum(ordered) / len(ordered)
            out["latency_p95"] = ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
        return out
