"""Evaluation of a policy on PocketWorld by sampling: avg@n and best@n, by level and family.

avg@n is the mean success, best@n the share of tasks with a success among n episodes.
`python -m agentevolver.recipes.offline.seed.evaluate --model DIR --split dev --n 4 [--hint]`. One thread, no server.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.recipes.offline.seed.demonstrator import with_hint
from agentevolver.recipes.offline.seed.sampler import SampledRollout, Sampler
from agentevolver.recipes.offline.seed.syntax import COMPACT, SYNTAXES, Syntax
from env_service.base import Message
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.families import FAMILIES
from env_service.environments.pocket.quirks import site_hint


def episode(
    task_id: str,
    hint: str = "",
    params: dict[str, Any] | None = None,
    syntax: Syntax = COMPACT,
    world: type[PocketEnv] = PocketEnv,
) -> tuple[PocketEnv, list[Message]]:
    env = world(task_id, "sample", {**(params or {}), **syntax.env_params})
    messages = env.get_init_state()["state"]
    messages[-1]["content"] = with_hint(messages[-1]["content"], hint)
    return env, messages


@dataclass(frozen=True, slots=True)
class SuccessReport:
    split: str
    n: int
    successes: dict[str, int]
    steps: float
    errors: float
    unfinished: float

    @property
    def avg(self) -> float:
        return sum(self.successes.values()) / (self.n * len(self.successes))

    @property
    def best(self) -> float:
        return sum(s > 0 for s in self.successes.values()) / len(self.successes)

    def by(self, group: str) -> dict[str, float]:
        shares: dict[str, list[float]] = defaultdict(list)
        for task_id, successes in self.successes.items():
            family = FAMILIES[task_id.split(".")[0]]
            shares[str(family.level) if group == "level" else family.name].append(successes / self.n)
        return {name: round(sum(v) / len(v), 3) for name, v in shares.items()}

    def summary(self) -> dict[str, Any]:
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
    seed: int = 0,
    tasks: Sequence[str] | None = None,
    batch: int = 288,
    params: dict[str, Any] | None = None,
    syntax: Syntax = COMPACT,
    world: type[PocketEnv] = PocketEnv,
    max_tokens: int | None = None,
) -> SuccessReport:
    """Sample `n` episodes of each task of a split of `world` (or of `tasks`), with at most `max_tokens` tokens. `hint`
    shows the true hint of the site."""
    tasks = list(tasks or world.get_query_list(split))
    sampler = Sampler(model, tokenizer, syntax=syntax, max_tokens=max_tokens)
    generator = torch.Generator().manual_seed(seed)
    task_ids = [task_id for task_id in tasks for _ in range(n)]
    rollouts: list[SampledRollout] = []
    for i in range(0, len(task_ids), batch):
        part = [episode(t, _told(t) if hint else "", params, syntax, world) for t in task_ids[i : i + batch]]
        rollouts += sampler.sample(part, generator=generator)
    successes = dict.fromkeys(tasks, 0)
    for rollout in rollouts:
        successes[rollout.task_id] += int(rollout.reward == 1.0)
    return SuccessReport(
        split,
        n,
        successes,
        steps=sum(len(r.actions) for r in rollouts) / len(rollouts),
        errors=sum(o.startswith("err") for r in rollouts for o in r.observations) / len(rollouts),
        unfinished=sum(r.stop_reason != "finished" for r in rollouts) / len(rollouts),
    )


def _told(task_id: str) -> str:
    return site_hint(int(task_id.split(".")[1][1:]))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.recipes.offline.seed.evaluate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", help="folder of a model and tokenizer; the shipped seed policy unless given")
    parser.add_argument("--syntax", default="compact", choices=SYNTAXES, help="how the model writes calls")
    parser.add_argument("--split", default="dev", choices=("train", "dev", "test", "hard"))
    parser.add_argument("--n", type=int, default=4, help="episodes a task")
    parser.add_argument("--hint", action="store_true", help="show each task the true hint of its site")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = args.model or str(seed_policy_path())
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    report = evaluate(
        model,
        AutoTokenizer.from_pretrained(path),
        args.split,
        n=args.n,
        hint=args.hint,
        seed=args.seed,
        syntax=SYNTAXES[args.syntax],
    )
    for key, value in report.summary().items():
        print(f"{key}: {value}")
    print("by family:", report.by("family"))


if __name__ == "__main__":
    main()
