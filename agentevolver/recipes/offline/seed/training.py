"""Model and training loop of a seed policy: a small Qwen2, trained from scratch by imitation on one core."""

from __future__ import annotations

import itertools
import json
import logging
import math
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from agentevolver.recipes.offline.seed.data import MAX_LENGTH, SeedExample
from agentevolver.recipes.offline.seed.muon import Muon

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SeedTraining:
    """Size of the model and of its training. `head_dim` is hidden / heads and must be 32 or 64 for vLLM's CPU
    attention.

    The first `clean_share` of the steps use demonstrations with few slips (`Habits.at_first`, `staged`). `other_weight`
    is the loss weight of tokens that the assistant did not write: a little of it teaches copying faster.
    """

    hidden: int = 128
    intermediate: int = 320
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    rope_theta: float = 10_000.0
    init: float = 0.06
    steps: int = 1500
    clean_share: float = 0.5
    batch: int = 32
    lr: float = 1e-2
    warmup: int = 50
    weight_decay: float = 0.01
    other_weight: float = 0.1


def make_model(tokenizer: Any, recipe: SeedTraining) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        initializer_range=recipe.init,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def batches(stream: Iterator[SeedExample], size: int, rng: random.Random) -> Iterator[list[SeedExample]]:
    """Yield batches of examples of similar length, in random order: padding is the main cost on a CPU."""
    while True:
        pool = sorted(itertools.islice(stream, 16 * size), key=lambda e: len(e.ids))
        groups = [pool[i : i + size] for i in range(0, len(pool), size)]
        rng.shuffle(groups)
        yield from groups


def loss_of(model: Any, batch: list[SeedExample], pad: int, other_weight: float) -> torch.Tensor:
    """Return a batch's mean weighted cross-entropy, in nats per unit of weight; the assistant's tokens weigh 1."""
    length = max(len(e.ids) for e in batch)
    ids = torch.tensor([e.ids + [pad] * (length - len(e.ids)) for e in batch])
    weight = torch.tensor(
        [[1.0 if a else other_weight for a in e.is_action] + [0.0] * (length - len(e.ids)) for e in batch]
    )[:, 1:]
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view_as(weight)
    return (losses * weight).sum() / weight.sum()


def staged(
    first: Iterator[SeedExample], then: Iterator[SeedExample], recipe: SeedTraining, rng: random.Random
) -> Iterator[list[SeedExample]]:
    """Yield batches without end: `first`'s for `clean_share` of the steps, then `then`'s."""
    clean = round(recipe.clean_share * recipe.steps)
    return itertools.chain(itertools.islice(batches(first, recipe.batch, rng), clean), batches(then, recipe.batch, rng))


def train(model: Any, tokenizer: Any, recipe: SeedTraining, stream: Iterator[list[SeedExample]]) -> float:
    """Train in place on batches, with warm-up and cosine decay to a twentieth; return the last smoothed loss.

    Muon updates the matrices, AdamW the rest. In 300 steps this reached a loss for which AdamW alone needs half as many
    more.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers." in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "layers." not in name]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=recipe.lr, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(others, lr=recipe.lr, weight_decay=recipe.weight_decay, betas=(0.9, 0.98)),
    ]
    smooth = math.log(len(tokenizer))
    model.train()
    for step, batch in enumerate(itertools.islice(stream, recipe.steps)):
        progress = step / recipe.steps
        rate = recipe.lr * min(1.0, (step + 1) / recipe.warmup) * (0.05 + 0.475 * (1 + math.cos(math.pi * progress)))
        loss = loss_of(model, batch, tokenizer.pad_token_id, recipe.other_weight)
        model.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        smooth += (loss.item() - smooth) * 0.02 if step > 50 else (loss.item() - smooth) * 0.2
        if step % 50 == 49:
            logger.info(
                "step %d of %d: loss %.3f, %.0f cpu seconds", step + 1, recipe.steps, smooth, time.process_time()
            )
    model.eval()
    return smooth


def save(model: Any, tokenizer: Any, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    model.generation_config.save_pretrained(out)
    tokenizer.save_pretrained(out)


def write_facts(out: Path, facts: Mapping[str, Any]) -> None:
    (out / "build.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
