"""Seed policy, built from nothing: a small Qwen2 that has imitated noisy demonstrations of PocketWorld.

`python -m agentevolver.recipes.offline.seed.policy [--syntax hermes] --out DIR` writes the files for `from_pretrained`,
and build.json with the command, the settings and the measurements. The same seed on the same build of torch gives the
same weights.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2ForCausalLM

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.recipes.offline.seed.data import SeedExample, build_tokenizer, corpus, examples
from agentevolver.recipes.offline.seed.demonstrator import Habits
from agentevolver.recipes.offline.seed.evaluate import SuccessReport, evaluate
from agentevolver.recipes.offline.seed.syntax import COMPACT, SYNTAXES, Syntax
from agentevolver.recipes.offline.seed.training import SeedTraining, make_model, save, staged, train, write_facts

logger = logging.getLogger(__name__)


# Training steps by syntax: `hermes` starts from the shipped policy's weights and needs fewer.
STEPS = {"compact": SeedTraining().steps, "hermes": 450}


def inherit(model: Qwen2ForCausalLM, tokenizer: Any) -> None:
    """Copy the shipped policy's weights, and its embeddings of shared tokens, into a fresh model.

    PocketWorld's rules carry over to the new syntax, so only the syntax is left to learn.
    """
    path = seed_policy_path()
    known, ids = Qwen2ForCausalLM.from_pretrained(path, dtype=torch.float32), tokenizer.get_vocab()
    shared = [(ids[text], old) for text, old in AutoTokenizer.from_pretrained(path).get_vocab().items() if text in ids]
    new, old = (torch.tensor(places) for places in zip(*shared, strict=True))
    weights = known.state_dict()
    for name, value in model.state_dict().items():
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            value[new] = weights[name][old]
        else:
            value.copy_(weights[name])


def demonstrations(
    tokenizer: Any, recipe: SeedTraining, habits: Habits, seed: int, syntax: Syntax = COMPACT
) -> Iterator[list[SeedExample]]:
    first, then = examples(tokenizer, seed, habits.at_first(), syntax), examples(tokenizer, seed + 1, habits, syntax)
    return staged(first, then, recipe, random.Random(f"seed-batches-{seed}"))


def build(
    out: Path,
    seed: int,
    recipe: SeedTraining,
    habits: Habits,
    command: str,
    *,
    splits: Sequence[str] = ("dev", "test", "hard"),
    n: int = 4,
    syntax: Syntax = COMPACT,
) -> dict[str, SuccessReport]:
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(corpus(seed, syntax=syntax), syntax=syntax)
    model = make_model(tokenizer, recipe)
    if syntax is not COMPACT:
        inherit(model, tokenizer)
    loss = train(model, tokenizer, recipe, demonstrations(tokenizer, recipe, habits, seed, syntax))
    seconds = time.process_time()
    save(model, tokenizer, out)
    reports = {
        f"{split}{' with hint' if hint else ''}": evaluate(
            model, tokenizer, split, n=n, hint=hint, seed=seed, syntax=syntax
        )
        for split in splits
        for hint in (False, True)
    }
    facts = {
        "command": command,
        "syntax": syntax.name,
        "seed": seed,
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "recipe": asdict(recipe),
        "habits": asdict(habits),
        "train_loss": round(loss, 4),
        "train_cpu_seconds": round(seconds),
        "sampled at temperature 1, slack 1": {name: report.summary() for name, report in reports.items()},
    }
    write_facts(out, facts)
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.recipes.offline.seed.policy", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, help="folder to write; that of the shipped policy unless given, where the syntax is its own"
    )
    parser.add_argument("--syntax", default="compact", choices=SYNTAXES, help="how the policy writes calls")
    parser.add_argument("--splits", nargs="*", default=["dev", "test", "hard"], help="what it is measured on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="training steps; fewer give a weaker policy, for a quick look")
    args = parser.parse_args()
    if args.out is None and args.syntax != COMPACT.name:
        parser.error(f"--out is needed: the shipped policy's syntax is {COMPACT.name}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    steps = args.steps or STEPS[args.syntax]
    chosen = "" if args.syntax == COMPACT.name else f" --syntax {args.syntax}"
    command = f"python -m agentevolver.recipes.offline.seed.policy --seed {args.seed} --steps {steps}{chosen}"
    out = args.out or Path(__file__).parent / "seed_policy_files"
    recipe, syntax = SeedTraining(steps=steps), SYNTAXES[args.syntax]
    reports = build(out, args.seed, recipe, Habits(), command, splits=args.splits, syntax=syntax)
    for name, report in reports.items():
        logger.info("%s: %s", name, report.summary())


if __name__ == "__main__":
    main()
