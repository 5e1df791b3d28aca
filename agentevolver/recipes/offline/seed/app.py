"""Two policies to begin `pocket_app` with: one size, a weaker and a stronger base.

    python -m agentevolver.recipes.offline.seed.app --base strong --out experiments/seed_app/strong
    python -m agentevolver.recipes.offline.seed.app --base weak --out experiments/seed_app/weak

The weaker one starts from the shipped policy and imitates a noisy demonstrator on goals of `pocket_app` and, in a
quarter of the cases, on pocket's short tasks. Site names are made up and seeds belong to no split. The stronger one
starts from the weaker one, which is built if it is missing, with a demonstrator that slips less and learns more often
from errors. build.json holds the command, the settings, and avg@8 with and without the true hint. The stronger one is
shipped: `seed_policy_path("app")`.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.recipes.offline.seed.data import FIRST_SEED, N_SEEDS, SeedExample, draw_task_id, endless
from agentevolver.recipes.offline.seed.demonstrator import Habits, demonstrate
from agentevolver.recipes.offline.seed.evaluate import evaluate
from agentevolver.recipes.offline.seed.training import SeedTraining, save, staged, train, write_facts
from env_service.environments.pocket.app_env import AppParams, PocketAppEnv
from env_service.environments.pocket.app_tasks import APP, N_LINKS
from env_service.environments.pocket.quirks import N_SITES

logger = logging.getLogger(__name__)

# Greatest length of a conversation.
MAX_TOKENS = 640
SHORT_TASKS = 0.25
# Weights of goals with one link to four: short ones first, which teach the order.
FIRST_LINKS, LATER_LINKS = (4, 3, 2, 1), (1, 1, 2, 4)


MODULE = "agentevolver.recipes.offline.seed.app"


@dataclass(frozen=True, slots=True)
class AppBase:
    """How a base is trained: the demonstrator's habits, steps, learning rate, and the base it starts from (None: the
    shipped policy)."""

    habits: Habits
    steps: int
    lr: float
    after: str | None = None


BASES: dict[str, AppBase] = {
    "weak": AppBase(Habits(slip=0.05, fix=0.45, hint=0.4), 5000, 5e-3),
    "strong": AppBase(Habits(slip=0.03, fix=0.7, hint=0.4), 6000, 3e-3, after="weak"),
}


def demonstrations(tokenizer: Any, seed: int, habits: Habits, links: Sequence[int]) -> Iterator[SeedExample]:
    """Yield demonstrations without end, reproducible by seed and habits. `links` are the weights of goals with one
    link, two, three and four."""
    rng = random.Random(f"seed-app-{seed}")

    def show() -> Any:
        if rng.random() < SHORT_TASKS:
            return demonstrate(draw_task_id(rng), rng, habits)
        task_id = f"{APP}.k{rng.randrange(N_SITES)}.{FIRST_SEED + rng.randrange(N_SEEDS)}"
        (n,) = rng.choices(range(1, N_LINKS + 1), links)
        return demonstrate(task_id, rng, habits, world=PocketAppEnv, params={"slack": AppParams().slack, "links": n})

    return endless(tokenizer, show)


def build(name: str, out: Path, seed: int = 0, steps: int | None = None, n: int = 8) -> dict[str, Any]:
    base = BASES[name]
    start = seed_policy_path()
    if base.after is not None:
        start = out.with_name(base.after)
        if not (start / "build.json").exists():
            build(base.after, start, seed, n=n)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(seed_policy_path())
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    clean_share = 0.5 if base.after is None else 0.0
    recipe = SeedTraining(steps=steps or base.steps, batch=16, lr=base.lr, warmup=20, clean_share=clean_share)
    first = demonstrations(tokenizer, seed, base.habits.at_first(), FIRST_LINKS)
    then = demonstrations(tokenizer, seed + 1, base.habits, LATER_LINKS)
    stream = staged(first, then, recipe, random.Random(f"seed-app-batches-{seed}"))
    loss = train(model, tokenizer, recipe, stream)
    seconds = time.process_time()
    save(model, tokenizer, out)
    measured = {}
    for hint in (False, True):
        report = evaluate(model, tokenizer, "dev", n=n, hint=hint, seed=seed, world=PocketAppEnv, max_tokens=MAX_TOKENS)
        measured["dev with hint" if hint else "dev"] = {
            f"avg@{n}": round(report.avg, 4),
            f"best@{n}": round(report.best, 4),
            "steps": round(report.steps, 2),
            "errors": round(report.errors, 2),
            "unfinished": round(report.unfinished, 3),
        }
    facts = {
        "command": f"python -m {MODULE} --base {name} --seed {seed} --steps {recipe.steps}",
        "torch": torch.__version__,
        "recipe": asdict(recipe),
        "habits": asdict(base.habits),
        "train_loss": round(loss, 4),
        "train_cpu_seconds": round(seconds),
        "sampled at temperature 1": measured,
    }
    write_facts(out, facts)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--base", choices=sorted(BASES), required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="training steps; those of the base unless given")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    for name, values in build(args.base, args.out, args.seed, args.steps)["sampled at temperature 1"].items():
        logger.info("%s: %s", name, values)


if __name__ == "__main__":
    main()
