"""Build of calc's seed policy: tokenizer, demonstrations, training, measurements, files."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from agentevolver.recipes.offline.seed.calc.demonstrator import NARROW, CalcHabits, demonstrate
from agentevolver.recipes.offline.seed.calc.measure import SYNTAX, measure_executor, measure_proposer
from agentevolver.recipes.offline.seed.data import SeedExample, build_tokenizer, endless
from agentevolver.recipes.offline.seed.training import (
    SeedTraining,
    batches,
    make_model,
    save,
    staged,
    train,
    write_facts,
)

VOCAB_SIZE = 320
RECIPE = SeedTraining(intermediate=256, steps=850, clean_share=0.6, other_weight=0.02)

# Narrows the proposer afterwards, at a learning rate that costs the executor little.
NARROWING = replace(RECIPE, steps=100, lr=2e-3, warmup=10)


def corpus(seed: int, n: int = 2000) -> list[str]:
    rng = random.Random(f"calc-corpus-{seed}")
    shown = [message for _ in range(n) for message in demonstrate(rng, CalcHabits())]
    return [part for message in shown for part in (f"{message['role']}\n", message["content"])]


def examples(tokenizer: Any, seed: int, habits: CalcHabits) -> Iterator[SeedExample]:
    rng = random.Random(f"calc-data-{seed}")
    return endless(tokenizer, lambda: demonstrate(rng, habits), SYNTAX)


def narrow(model: Any, tokenizer: Any, recipe: SeedTraining, habits: CalcHabits, seed: int) -> float:
    stream = examples(tokenizer, seed + 2, replace(habits, proposed=NARROW))
    return train(model, tokenizer, recipe, batches(stream, recipe.batch, random.Random(f"calc-narrow-{seed}")))


def build(
    out: Path,
    seed: int,
    recipe: SeedTraining,
    habits: CalcHabits,
    command: str,
    *,
    narrowing: SeedTraining | None = None,
    n: int = 8,
    proposals: int = 640,
) -> dict[str, dict[str, Any]]:
    """Train, save and measure; `n` are episodes of each dev task. `narrowing` is a second training, on proposals of 2
    to 4 operands."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(corpus(seed), VOCAB_SIZE, SYNTAX)
    model = make_model(tokenizer, recipe)
    first, then = examples(tokenizer, seed, habits.at_first()), examples(tokenizer, seed + 1, habits)
    loss = train(model, tokenizer, recipe, staged(first, then, recipe, random.Random(f"calc-batches-{seed}")))
    if narrowing:
        loss = narrow(model, tokenizer, narrowing, habits, seed)
    seconds = time.process_time()
    save(model, tokenizer, out)
    measured = {
        "executor on dev": measure_executor(model, tokenizer, n=n, seed=seed),
        "proposer": measure_proposer(model, tokenizer, n=proposals, seed=seed),
    }
    facts = {
        "command": command,
        "seed": seed,
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "recipe": asdict(recipe),
        "narrowing": asdict(narrowing) if narrowing else None,
        "habits": asdict(habits),
        "train_loss": round(loss, 4),
        "train_cpu_seconds": round(seconds),
        "sampled at temperature 1": measured,
    }
    write_facts(out, facts)
    return measured
