"""Prompt length of every call of long episodes, by context template: what a context that cannot hold an episode comes
to.

    python -m benchmarks.context_length [--episodes 8] [--policy reference seed] [--out docs/img/context_length]

Plays tasks of `pocket_long` outside training, through the runner, templates and samples of a training run, in a context
of about 512 tokens (the numbers of examples/pocket_long.yaml). `reference` is no policy: it says the reference solution
call by call and, asked about its context, removes the older half of what it is asked about, so that what ends an
episode is the context alone. `seed` is the shipped seed policy, untrained on long tasks, sampled at temperature 1.
Summaries are the built-in teacher's. Writes a CSV (one line a call) and a PNG, and prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from agentevolver.engine import Generated
from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.recipes.offline.teacher.service import Teacher
from agentevolver.rollout.rollout import Rollout, RolloutPolicy, RolloutRunner
from agentevolver.types import Task
from context_manager.chat import ChatRenderer
from context_manager.registry import TEMPLATES
from context_manager.template import ContextLimits, ContextSettings
from env_service.environments.pocket.long_env import PocketLongEnv
from env_service.environments.pocket.oracle import long_reference

LIMITS = ContextLimits(160, 480, 640, 32, 96)
SHORTENING = {"context_keep_turns": 8, "summary_tokens": 32}
WAYS: dict[str, tuple[str, ContextSettings]] = {
    "causal": ("causal", ContextSettings()),
    "sliding_window": ("sliding_window", ContextSettings(**SHORTENING, summary_by="summariser")),  # type: ignore[arg-type]
    "self_managed": ("self_managed", ContextSettings(**SHORTENING)),  # type: ignore[arg-type]
}


class LocalEnv:
    """`pocket_long` in this process, as the runner's client."""

    def __init__(self) -> None:
        self.instances: dict[str, PocketLongEnv] = {}
        self.solved: dict[str, int] = {}

    async def create_instance(
        self, env_type: str, task_id: str, instance_id: str | None = None, params: Any = None
    ) -> Any:
        name = str(instance_id)
        self.instances[name] = PocketLongEnv(task_id, name, params)
        return self.instances[name].get_init_state()

    async def step(self, instance_id: str, action: Any, params: Any = None, step_index: int | None = None) -> Any:
        result = self.instances[instance_id].step(action)
        self.solved[self.instances[instance_id].task_id] = result["info"]["goals_solved"]
        return result

    async def evaluate(self, instance_id: str, messages: Any = None, params: Any = None) -> float:
        return self.instances[instance_id].evaluate(params=params)

    async def get_info(self, instance_id: str, messages: Any = None, params: Any = None) -> Any:
        return self.instances[instance_id].get_info(params=params)

    async def release_instance(self, instance_id: str) -> bool:
        return self.instances.pop(instance_id, None) is not None

    async def health(self) -> bool:
        return True


class Reference:
    """Says the reference solution; asked about its context, removes the older half of what it is asked about."""

    def __init__(self, tokenizer: Any, task_id: str) -> None:
        self._tokenizer = tokenizer
        self._left = iter(long_reference(task_id))

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        asked = self._tokenizer.decode(prompt_ids[-260:])
        sizes = re.search(r"Tokens by id: ([^<]*)", asked)
        if sizes is None:
            text = next(self._left)
        else:
            numbers = re.findall(r"m\d+(?= )", sizes[1])
            text = "remove " + " ".join(numbers[: (len(numbers) + 1) // 2])
        ids = [
            *self._tokenizer.encode(text, add_special_tokens=False)[: sampling_params["max_tokens"] - 1],
            self._tokenizer.eos_token_id,
        ]
        return Generated(ids, [0.0] * len(ids), 0, 0)


class Seed:
    """Samples from the seed policy, with the cache of what the last prompt shares with this one."""

    def __init__(self, model: Any, tokenizer: Any, seed: int) -> None:
        self._model = model
        self._end = tokenizer.eos_token_id
        self._generator = torch.Generator().manual_seed(seed)
        self._cache = DynamicCache()
        self._cached: list[int] = []

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        with torch.no_grad():
            return self._sampled(prompt_ids, sampling_params["max_tokens"])

    def _sampled(self, prompt_ids: list[int], max_tokens: int) -> Generated:
        shared = next(
            (i for i, (a, b) in enumerate(zip(self._cached, prompt_ids, strict=False)) if a != b),
            min(len(self._cached), len(prompt_ids)),
        )
        shared = min(shared, len(prompt_ids) - 1)
        self._cache.crop(shared)
        self._cached = list(prompt_ids)
        fed, ids, log_probs = prompt_ids[shared:], list[int](), list[float]()
        while len(ids) < max_tokens:
            logits = (
                self._model(torch.tensor([fed]), past_key_values=self._cache, use_cache=True)
                .logits[0, -1]
                .log_softmax(-1)
            )
            token = int(torch.multinomial(logits.exp(), 1, generator=self._generator))
            ids.append(token)
            log_probs.append(float(logits[token]))
            if token == self._end:
                break
            self._cached.append(token)
            fed = [token]
        self._cached = self._cached[: int(self._cache.get_seq_length())]
        return Generated(ids, log_probs, 0, 0)


@dataclass
class Played:
    """An episode and how many of its goals were solved."""

    rollout: Rollout
    solved: int
    goals: int


async def play(policy: str, way: str, task_id: str, number: int, model: Any, tokenizer: Any) -> Played:
    template, options = WAYS[way]
    renderer, teacher, env = ChatRenderer(tokenizer), Teacher(), LocalEnv()

    async def summarise(messages: list[dict[str, Any]], max_tokens: int) -> str:
        return teacher.answer(messages, temperature=0)

    engine = Reference(tokenizer, task_id) if policy == "reference" else Seed(model, tokenizer, number)
    runner = RolloutRunner(
        RolloutPolicy(max_steps=200, max_tries=1, sparse=False, unavailable_timeout_s=0),
        env,
        engine,
        lambda: TEMPLATES[template](renderer, LIMITS, options),
        summariser=summarise,
    )
    rollout = await runner.run(Task(task_id, "pocket_long"), "g", number, {"temperature": 1.0}, {"slack": 1})
    if rollout.trajectory.outcome is None:
        raise RuntimeError(f"{way}, {task_id}: {rollout.trajectory.stop_reason}: {rollout.trajectory.error}")
    info = PocketLongEnv(task_id, "i").get_init_state()["info"]
    return Played(rollout, env.solved[task_id], info["goals"])


def report(console: Console, played: dict[tuple[str, str], list[Played]]) -> None:
    table = Table(title="about 512 tokens of context; means over episodes")
    for column in (
        "policy",
        "template",
        "ended as",
        "actions",
        "goals solved",
        "mean prompt",
        "longest",
        "samples",
        "their tokens",
    ):
        table.add_column(column)
    for (policy, way), episodes in played.items():
        steps = [step for one in episodes for step in one.rollout.trajectory.steps]
        prompts = [step.prompt_tokens for step in steps]
        reasons = Counter(str(one.rollout.trajectory.stop_reason) for one in episodes)
        samples = [one.rollout.samples for one in episodes]
        table.add_row(
            policy,
            way,
            ", ".join(f"{count} {reason}" for reason, count in reasons.items()),
            f"{sum(step.kind == 'action' for step in steps) / len(episodes):.1f}",
            f"{fmean(one.solved for one in episodes):.1f} of {fmean(one.goals for one in episodes):.1f}",
            f"{fmean(prompts):.0f}",
            f"{max(prompts)}",
            f"{fmean(len(some) for some in samples):.1f}",
            f"{fmean(sum(len(s.prompt_ids) + len(s.response_ids) for s in some) for some in samples):.0f}",
        )
    console.print(table)


def write_csv(path: Path, played: dict[tuple[str, str], list[Played]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("policy", "template", "task", "call", "kind", "prompt_tokens", "stop_reason", "goals_solved", "goals")
        )
        for (policy, way), episodes in played.items():
            for one in episodes:
                trajectory = one.rollout.trajectory
                for step in trajectory.steps:
                    ended = (str(trajectory.stop_reason), one.solved, one.goals)
                    writer.writerow(
                        (policy, way, trajectory.task.task_id, step.index, step.kind, step.prompt_tokens, *ended)
                    )


def plot(path: Path, played: dict[tuple[str, str], list[Played]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_policy: dict[str, dict[str, list[Played]]] = defaultdict(dict)
    for (policy, way), episodes in played.items():
        by_policy[policy][way] = episodes
    figure, axes = pyplot.subplots(1, len(by_policy), figsize=(5.5 * len(by_policy), 4), sharey=True, squeeze=False)
    for axis, (policy, ways) in zip(axes[0], by_policy.items(), strict=True):
        for colour, (way, episodes) in enumerate(ways.items()):
            for i, one in enumerate(episodes):
                steps = [step.prompt_tokens for step in one.rollout.trajectory.steps if step.kind == "action"]
                axis.plot(
                    range(1, len(steps) + 1),
                    steps,
                    color=f"C{colour}",
                    alpha=0.55,
                    linewidth=1,
                    label=way if i == 0 else None,
                )
                if one.rollout.trajectory.stop_reason == "context_full":
                    axis.plot(len(steps), steps[-1], marker="x", color=f"C{colour}")
        axis.set_title({"reference": "reference solution", "seed": "seed policy"}[policy])
        axis.set_xlabel("turn")
    axes[0][0].set_ylabel("prompt, tokens")
    axes[0][0].legend(title="x: context full")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--policy", nargs="+", choices=("reference", "seed"), default=["reference", "seed"])
    parser.add_argument("--out", type=Path, default=Path("docs/img/context_length"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(seed_policy_path())
    model = AutoModelForCausalLM.from_pretrained(seed_policy_path(), dtype=torch.float32).eval()
    tasks = PocketLongEnv.get_query_list("dev", {"n": arguments.episodes})
    played: dict[tuple[str, str], list[Played]] = {}
    for policy in arguments.policy:
        for way in WAYS:
            played[policy, way] = [
                asyncio.run(play(policy, way, task, i, model, tokenizer)) for i, task in enumerate(tasks)
            ]
    report(Console(width=150), played)
    write_csv(arguments.out.with_suffix(".csv"), played)
    plot(arguments.out.with_suffix(".png"), played)


if __name__ == "__main__":
    main()
