"""A policy to begin long tasks with: the seed policy, taught by imitation that a conversation may hold more than one
goal.

    python -m benchmarks.long_policy --out DIR [--steps 300]

The shipped seed policy has never seen a second goal and looks for the words of each at the beginning. Here it imitates
chains of the same noisy demonstrations, all of one made-up site, as `pocket_long` lays them out; half of them have lost
some turns after the opening, as a context template would take them away. Tasks are from the seeds that no split has.
What it is for: comparing context templates by training (docs/context_manager.md).
"""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.recipes.offline.seed.data import SeedExample, draw_task_id, encode
from agentevolver.recipes.offline.seed.demonstrator import Habits, demonstrate
from agentevolver.recipes.offline.seed.training import SeedTraining, batches, save, train
from env_service.base import Message
from env_service.environments.pocket.quirks import N_SITES

# What a conversation of examples/pocket_long.yaml holds at most.
LONGEST = 640
GOALS = 14
HABITS = Habits(explore=0.0)


def chain(rng: random.Random) -> list[Message]:
    """Demonstrations on one site put together: the answer to `done` is the next goal."""
    site = rng.randrange(N_SITES)
    opening, *rest = (demonstrate(draw_task_id(rng, site), rng, HABITS) for _ in range(GOALS))
    messages = opening + [message for conversation in rest for message in conversation[1:]]
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    gap = rng.choice(turns[: len(turns) // 2]) if rng.random() < 0.5 else turns[0]
    return messages[: turns[0]] + messages[gap:]


def chains(tokenizer: Any, seed: int) -> Iterator[SeedExample]:
    """Chains without end, cut to what a context holds."""
    rng = random.Random(f"long-data-{seed}")
    while True:
        for example in encode(tokenizer, [chain(rng) for _ in range(64)]):
            yield SeedExample(example.ids[:LONGEST], example.is_action[:LONGEST])


def main() -> None:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_policy", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300, help="of 16 conversations each")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(seed_policy_path())
    model = AutoModelForCausalLM.from_pretrained(seed_policy_path(), dtype=torch.float32)
    recipe = SeedTraining(steps=args.steps, batch=16, lr=3e-3, warmup=20)
    loss = train(
        model,
        tokenizer,
        recipe,
        batches(chains(tokenizer, args.seed), recipe.batch, random.Random(f"long-batches-{args.seed}")),
    )
    save(model, tokenizer, args.out)
    logging.info("loss %.3f, written to %s", loss, args.out)


if __name__ == "__main__":
    main()
