"""Measures a policy on PocketWorld by sampling: avg@n (mean success) and best@n (tasks with a success among n), by
level and family.

`python -m agentevolver.builtin.seed.evaluate --model DIR --split dev --n 4 [--hint]`. One thread, no server.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentevolver.builtin.seed import seed_policy_path
from env_service.environments.pocket import PocketEnv
from env_service.environments.pocket.families import FAMILIES
from env_service.environments.pocket.oracle import hint as true_hint


@dataclass(frozen=True, slots=True)
class Report:
    """Success of each task over its n episodes, and sums over all episodes."""

    split: str
    n: int
    successes: dict[str, int]
    steps: float
    errors: float
    unfinished: float

    @property
    def avg(self) -> float:
        """avg@n: the share of episodes that succeed."""
        return sum(self.successes.values()) / (self.n * len(self.successes))

    @property
    def best(self) -> float:
        """best@n: the share of tasks with at least one success among their n episodes."""
        return sum(s > 0 for s in self.successes.values()) / len(self.successes)

    def by(self, group: str) -> dict[str, float]:
        """avg@n by "level" or "family"."""
        shares: dict[str, list[float]] = defaultdict(list)
        for task_id, successes in self.successes.items():
            family = FAMILIES[task_id.split(".")[0]]
            shares[str(family.level) if group == "level" else family.name].append(successes / self.n)
        return {name: round(sum(v) / len(v), 3) for name, v in shares.items()}

    def summary(self) -> dict[str, Any]:
        """The numbers in JSON-ready form, families left out."""
        return {
            f"avg@{self.n}": round(self.avg, 3),
            f"best@{self.n}": round(self.best, 3),
            "by level": self.by("level"),
            "steps": round(self.steps, 2),
            "errors": round(self.errors, 2),
            "unfinished": round(self.unfinished, 3),
        }


def evaluate(
    model: Any,
    tokenizer: Any,
    split: str = "dev",
    *,
    n: int = 4,
    hint: bool = False,
    temperature: float = 1.0,
    seed: int = 0,
    tasks: Sequence[str] | None = None,
    batch: int = 288,
    params: dict[str, Any] | None = None,
) -> Report:
    """Sample `n` episodes of each task of a split (or of `tasks`); `hint` shows each the true hint of its site."""
    import torch

    from agentevolver.builtin.seed.sampler import Rollout, Sampler

    tasks = list(tasks or PocketEnv.get_query_list(split))
    sampler, generator = Sampler(model, tokenizer), torch.Generator().manual_seed(seed)
    episodes = [task_id for task_id in tasks for _ in range(n)]
    rollouts: list[Rollout] = []
    for i in range(0, len(episodes), batch):
        part = episodes[i : i + batch]
        hints = [true_hint(t) if hint else "" for t in part]
        rollouts += sampler.sample(part, hints, temperature=temperature, params=params, generator=generator)
    successes = dict.fromkeys(tasks, 0)
    for rollout in rollouts:
        successes[rollout.task_id] += int(rollout.reward == 1.0)
    return Report(
        split,
        n,
        successes,
        steps=sum(len(r.actions) for r in rollouts) / len(rollouts),
        errors=sum(o.startswith("err") for r in rollouts for o in r.observations) / len(rollouts),
        unfinished=sum(r.stop_reason != "finished" for r in rollouts) / len(rollouts),
    )


def main() -> None:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.builtin.seed.evaluate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", help="folder of a model and tokenizer; the shipped seed policy unless given")
    parser.add_argument("--split", default="dev", choices=("train", "dev", "test", "hard"))
    parser.add_argument("--n", type=int, default=4, help="episodes a task")
    parser.add_argument("--hint", action="store_true", help="show each task the true hint of its site")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--slack", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    path = args.model or str(seed_policy_path())
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    report = evaluate(
        model,
        AutoTokenizer.from_pretrained(path),
        args.split,
        n=args.n,
        hint=args.hint,
        temperature=args.temperature,
        seed=args.seed,
        params={"slack": args.slack},
    )
    for key, value in report.summary().items():
        print(f"{key}: {value}")
    print("by family:", report.by("family"))


if __name__ == "__main__":
    main()
