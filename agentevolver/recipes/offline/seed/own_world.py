"""Builds a seed policy for your own environment: a small Qwen2 with a tokenizer of the environment's words, trained on
demonstrations.

It starts from the shipped policy's weights, which can find and copy words, and from its embeddings of shared tokens.
The same demonstrations and seed on the same build of torch give the same weights.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agentevolver.recipes.offline.seed.data import MAX_LENGTH, SeedExample, build_tokenizer, encode, pieces
from agentevolver.recipes.offline.seed.demonstrations import DemonstrationError, PlayedTask
from agentevolver.recipes.offline.seed.policy import inherit
from agentevolver.recipes.offline.seed.sampler import Sampler
from agentevolver.recipes.offline.seed.syntax import COMPACT, SPLIT_QWEN
from agentevolver.recipes.offline.seed.training import SeedTraining, batches, make_model, save, train, write_facts
from env_service.base import BaseEnv

# `AutoTokenizer` gives a saved Qwen2 tokenizer this pattern, so training must split text by it too.
SYNTAX = replace(COMPACT, split=SPLIT_QWEN)
# Most tokens: bytes, control tokens, and (pieces of) words of the demonstrations.
VOCAB_SIZE = 768
RECIPE = SeedTraining(steps=400, batch=32, lr=5e-3, warmup=20, other_weight=0.02)


@dataclass(frozen=True, slots=True)
class TokenSizes:
    """Tokens and turns of the longest demonstrations; `keys` are the config keys that must allow them."""

    opening: int
    after: int
    reply: int
    answer: int
    turns: int

    def keys(self) -> dict[str, int]:
        rollout = "actor_rollout_ref.rollout"
        return {
            "data.max_prompt_length": self.opening,
            "data.max_response_length": self.after,
            f"{rollout}.max_model_len": self.opening + self.after,
            f"{rollout}.response_length": self.reply,
            f"{rollout}.max_env_len": self.answer,
            f"{rollout}.multi_turn.max_steps": self.turns,
        }


def corpus(shown: Sequence[PlayedTask]) -> list[str]:
    return [part for one in shown for said in one.messages for part in (f"{said['role']}\n", said["content"])]


def examples(tokenizer: Any, shown: Sequence[PlayedTask]) -> list[SeedExample]:
    found = list(encode(tokenizer, [one.messages for one in shown], SYNTAX))
    for one, example in zip(shown, found, strict=True):
        if len(example.ids) > MAX_LENGTH:
            raise DemonstrationError(
                f"{one.place}: the conversation has {len(example.ids)} tokens, and the policy reads {MAX_LENGTH}: "
                "shorten what the world says, or the episode"
            )
    return found


def sizes_of(tokenizer: Any, shown: Sequence[PlayedTask]) -> TokenSizes:
    opening, after, reply, answer, turns = 0, 0, 0, 0, 0
    for one in shown:
        lengths = [
            (mine, len(tokenizer.encode(text, add_special_tokens=False))) for text, mine in pieces(one.messages, SYNTAX)
        ]
        replies = [length for mine, length in lengths if mine]
        opening, after = max(opening, lengths[0][1]), max(after, sum(length for _, length in lengths[1:]))
        reply, turns = max(reply, *replies), max(turns, len(replies))
        answer = max([answer, *(length for mine, length in lengths[1:] if not mine)])
    return TokenSizes(opening, after, reply, answer, turns)


def shuffled(found: Sequence[SeedExample], rng: random.Random) -> Iterator[SeedExample]:
    while True:
        yield from rng.sample(found, len(found))


def build(
    out: Path, shown: Sequence[PlayedTask], *, seed: int = 0, recipe: SeedTraining = RECIPE, command: str = ""
) -> tuple[Any, Any, dict[str, Any]]:
    """Train a policy on demonstrations and save it; return it, its tokenizer, and the contents of build.json. Raises
    DemonstrationError if one is too long."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(corpus(shown), VOCAB_SIZE, SYNTAX, exact=False)
    found = examples(tokenizer, shown)
    model = make_model(tokenizer, recipe)
    inherit(model, tokenizer)
    rng = random.Random(f"own-world-{seed}")
    loss = train(model, tokenizer, recipe, batches(shuffled(found, rng), recipe.batch, rng))
    seconds = time.process_time()
    save(model, tokenizer, out)
    facts = {
        "command": command,
        "seed": seed,
        "torch": torch.__version__,
        "demonstrations": len(shown),
        "demonstrations_score": round(sum(one.score for one in shown) / len(shown), 4),
        "tokens": len(tokenizer),
        "parameters": sum(p.numel() for p in model.parameters()),
        "recipe": asdict(recipe),
        "train_loss": round(loss, 4),
        "train_cpu_seconds": round(seconds),
        "longest": asdict(sizes_of(tokenizer, shown)),
    }
    write_facts(out, facts)
    return model, tokenizer, facts


def measure(
    model: Any,
    tokenizer: Any,
    world: type[BaseEnv],
    tasks: Sequence[str],
    sizes: TokenSizes,
    *,
    n: int = 4,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
) -> float:
    """Play `n` episodes of each task at temperature 1 and return the mean score. An episode may be half as long again
    as the longest demonstration."""
    episodes = []
    for task in tasks:
        for _ in range(n):
            env = world(task, "measured", dict(params or {}))
            episodes.append((env, env.get_init_state(dict(params or {}))["state"]))
    longest = min(sizes.opening + 3 * (sizes.after + 1) // 2, MAX_LENGTH)
    sampler = Sampler(model, tokenizer, syntax=replace(SYNTAX, turn_tokens=2 * sizes.reply, episode_tokens=longest))
    try:
        rollouts = sampler.sample(episodes, generator=torch.Generator().manual_seed(seed))
    finally:
        for env, _ in episodes:
            env.close()
    return sum(rollout.reward for rollout in rollouts) / len(rollouts)
