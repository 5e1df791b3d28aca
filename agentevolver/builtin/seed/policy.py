"""Seed policy, built from nothing: a small Qwen2 that has imitated noisy demonstrations of PocketWorld.

`python -m agentevolver.builtin.seed.policy [--syntax hermes] --out DIR` writes what `from_pretrained` reads (config,
generation config, weights in safetensors, tokenizer) and build.json with the command, the settings and what was
measured. The same seed on the same build of torch gives the same weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from agentevolver.builtin.seed import seed_policy_path
from agentevolver.builtin.seed.data import MAX_LENGTH, Example, build_tokenizer, corpus, examples
from agentevolver.builtin.seed.demonstrator import Habits
from agentevolver.builtin.seed.evaluate import Report, evaluate
from agentevolver.builtin.seed.syntax import COMPACT, SYNTAXES, Syntax

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Size of the model and of its training. `head_dim` is hidden / heads and must be 32 or 64, which vLLM's CPU
    attention wants.

    The first `clean_share` of the steps see demonstrations with hardly any slips (`Habits.at_first`).
    `other_weight` is the loss weight of tokens the assistant did not write: a little of it teaches copying faster.
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


# Training steps by syntax: one that begins with the shipped policy's weights needs fewer.
STEPS = {"compact": Recipe().steps, "hermes": 450}


def make_model(tokenizer: Any, recipe: Recipe) -> Qwen2ForCausalLM:
    """A fresh model in fp32 whose vocabulary is exactly the tokenizer's."""
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


def inherit(model: Qwen2ForCausalLM, tokenizer: Any) -> None:
    """Give a fresh model the shipped policy's weights, and the embeddings of the tokens that both know, in place.

    What PocketWorld wants carries over from one syntax to the other, and only the new one is left to be learnt.
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


def batches(stream: Iterator[Example], size: int, rng: random.Random) -> Iterator[list[Example]]:
    """Batches of examples of like length, in random order: padding is what costs most on a CPU."""
    while True:
        pool = sorted(itertools.islice(stream, 16 * size), key=lambda e: len(e.ids))
        groups = [pool[i : i + size] for i in range(0, len(pool), size)]
        rng.shuffle(groups)
        yield from groups


def loss_of(model: Any, batch: list[Example], pad: int, other_weight: float) -> torch.Tensor:
    """Mean weighted cross-entropy of a batch, in nats per unit of weight; the assistant's tokens weigh 1."""
    length = max(len(e.ids) for e in batch)
    ids = torch.tensor([e.ids + [pad] * (length - len(e.ids)) for e in batch])
    weight = torch.tensor(
        [[1.0 if a else other_weight for a in e.is_action] + [0.0] * (length - len(e.ids)) for e in batch]
    )[:, 1:]
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view_as(weight)
    return (losses * weight).sum() / weight.sum()


def demonstrations(
    tokenizer: Any, recipe: Recipe, habits: Habits, seed: int, syntax: Syntax = COMPACT
) -> Iterator[list[Example]]:
    """The batches of the recipe: clean demonstrations first, then those of the habits, without end."""
    rng, clean = random.Random(f"seed-batches-{seed}"), round(recipe.clean_share * recipe.steps)
    return itertools.chain(
        itertools.islice(batches(examples(tokenizer, seed, habits.at_first(), syntax), recipe.batch, rng), clean),
        batches(examples(tokenizer, seed + 1, habits, syntax), recipe.batch, rng),
    )


def train(model: Any, tokenizer: Any, recipe: Recipe, stream: Iterator[list[Example]]) -> float:
    """Train in place on a stream of batches, with warm-up and cosine decay to a twentieth; returns the last smoothed
    loss.

    Muon for the matrices, AdamW for embeddings, head, norms and biases: in 300 steps this reached a loss AdamW alone
    needs half as many more for, and the build has minutes of one core.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers." in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "layers." not in name]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=recipe.lr, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"),
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


def build(
    out: Path,
    seed: int,
    recipe: Recipe,
    habits: Habits,
    command: str,
    *,
    splits: Sequence[str] = ("dev", "test", "hard"),
    n: int = 4,
    syntax: Syntax = COMPACT,
) -> dict[str, Report]:
    """Train, save to `out` and measure `n` episodes a task; returns the reports that build.json holds too."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(corpus(seed, syntax=syntax), syntax=syntax)
    model = make_model(tokenizer, recipe)
    if syntax is not COMPACT:
        inherit(model, tokenizer)
    loss = train(model, tokenizer, recipe, demonstrations(tokenizer, recipe, habits, seed, syntax))
    seconds = time.process_time()
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    model.generation_config.save_pretrained(out)
    tokenizer.save_pretrained(out)
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
    (out / "build.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return reports


def main() -> None:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.builtin.seed.policy", description=__doc__.split("\n")[0]
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
    command = f"python -m agentevolver.builtin.seed.policy --seed {args.seed} --steps {steps}{chosen}"
    out = args.out or Path(__file__).parent / "seed_policy_files"
    recipe, syntax = Recipe(steps=steps), SYNTAXES[args.syntax]
    reports = build(out, args.seed, recipe, Habits(), command, splits=args.splits, syntax=syntax)
    for name, report in reports.items():
        logger.info("%s: %s", name, report.summary())


if __name__ == "__main__":
    main()
