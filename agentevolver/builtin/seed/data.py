"""Training data of the seed policy: demonstrations as token ids with a mask, and the tokenizer's corpus. A seed
reproduces both."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentevolver.builtin.seed.demonstrator import Habits, demonstrate
from agentevolver.builtin.seed.hints import phrases
from agentevolver.builtin.seed.tokenizer import pieces
from env_service.base import Message
from env_service.environments.pocket.families import FAMILIES
from env_service.environments.pocket.prompts import opening
from env_service.environments.pocket.quirks import N_SITES

# Demonstrations come from the upper end of the train seeds, so that the tasks that RL trains on were never shown
# solved.
FIRST_SEED = 20_000
N_SEEDS = 30_000


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation's ids, and for each whether the assistant wrote it (`<|im_end|>` included)."""

    ids: list[int]
    is_action: list[bool]


def draw_task_id(rng: random.Random, site: int | None = None) -> str:
    """A task of a site, or of any, that is in no split list of usual size; harder levels come more often.

    Demonstrations are shown under a made-up site name (`demonstrate`), so no site's name can give its quirks away.
    """
    (family,) = rng.choices(_FAMILIES, _SHARES)
    return f"{family}.k{rng.randrange(N_SITES) if site is None else site}.{FIRST_SEED + rng.randrange(N_SEEDS)}"


_FAMILIES = sorted(FAMILIES)
_SHARES = [{1: 0.6, 2: 1.0, 3: 1.4, 4: 1.4}[FAMILIES[name].level] for name in _FAMILIES]


def corpus(seed: int, n: int = 4000) -> list[str]:
    """Texts for the tokenizer: demonstrations, hints in many words, and a little of the verbose prompt."""
    rng = random.Random(f"seed-corpus-{seed}")
    texts = [m["content"] for _ in range(n) for m in demonstrate(draw_task_id(rng), rng, Habits())]
    roles = ["system\n", "user\n", "assistant\n"] * n
    verbose = [m["content"] for syntax in ("compact", "json") for m in opening(0, None, syntax=syntax, verbose=True)]
    return texts + roles + phrases() * 10 + verbose * 5


def examples(tokenizer: Any, seed: int, habits: Habits) -> Iterator[Example]:
    """Demonstrations without end; the same seed and habits give the same ones."""
    rng = random.Random(f"seed-data-{seed}")
    while True:
        yield from encode(tokenizer, [demonstrate(draw_task_id(rng), rng, habits) for _ in range(256)])


def encode(tokenizer: Any, conversations: Sequence[Sequence[Message]]) -> Iterator[Example]:
    """Conversations as training examples."""
    cut = [pieces(conversation) for conversation in conversations]
    encoded = iter(tokenizer([text for c in cut for text, _ in c], add_special_tokens=False)["input_ids"])
    for conversation in cut:
        ids: list[int] = []
        is_action: list[bool] = []
        for (_, mine), piece in zip(conversation, encoded, strict=False):
            ids += piece
            is_action += [mine] * len(piece)
        yield Example(ids, is_action)
