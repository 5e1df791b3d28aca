"""How much longer a rollout phase takes when its steps are labelled: not at all, overlapped, or after the last rollout.

    python -m benchmarks.attribution [--rollouts 256] [--latency 1.0] [--concurrency 32]

Real episodes run in real time (`RolloutRunner` with the causal template) against an engine that takes a drawn time for
each turn and an environment that is a function call; every trajectory is unlike the others, so that none comes from the
label cache. The judge is a stand-in with a fixed latency and a bounded number of calls at once. Prints the wall time of
the phase, what the labels added to it, and the seconds a trajectory waited for its labels.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from advantage_processor import AttributionSettings
from advantage_processor.attributor import Attributor
from agentevolver.engine import Generated
from agentevolver.llm import Reply, Role
from agentevolver.llm.prompts import read_sections
from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.rollout.rollout import RolloutPolicy, RolloutRunner
from agentevolver.types import LabelStatus, Task, Trajectory
from context_manager.chat import ChatRenderer
from context_manager.template import CausalTemplate, ContextLimits

LIMITS = ContextLimits(
    max_prompt_tokens=512,
    max_response_tokens=100_000,
    max_model_len=100_000,
    max_new_tokens=64,
    max_observation_tokens=256,
)


class TimedEngine:
    """Takes a drawn time for every turn, then always says the same."""

    def __init__(self, ids: list[int], turn_s: tuple[float, float]) -> None:
        self._ids = ids
        self._turn_s = turn_s
        self._draw = random.Random(1)

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        await asyncio.sleep(self._draw.uniform(*self._turn_s))
        return Generated(self._ids, [-0.5] * len(self._ids), 0, 0)


class CountingEnv:
    """Ends each episode after a number of turns drawn from its task's name; every observation is unlike the others."""

    def __init__(self, turns: tuple[int, int]) -> None:
        self._turns = turns

    async def create_instance(
        self, env_type: str, task_id: str, instance_id: str | None = None, params: Any = None
    ) -> dict[str, Any]:
        return {
            "state": [
                {"role": "system", "content": "site k7"},
                {"role": "user", "content": f"delete the note {task_id}"},
            ],
            "info": {},
        }

    async def step(
        self, instance_id: str, action: Any, params: Any = None, step_index: int | None = None
    ) -> dict[str, Any]:
        task_id = instance_id.partition("-")[0]
        over = (step_index or 0) + 1 >= random.Random(task_id).randint(*self._turns)
        observation = {"role": "user", "content": f"note {task_id} number {step_index}"}
        return {"state": [observation], "reward": 0.0, "is_terminated": over, "info": {}}

    async def evaluate(self, instance_id: str, messages: Any = None, params: Any = None) -> float:
        return float(random.Random(instance_id.partition("-")[0]).random() < 0.5)

    async def release_instance(self, instance_id: str) -> bool:
        return True

    async def health(self) -> bool:
        return True


class TimedJudge:
    """Labels every step GOOD after a fixed latency, a bounded number of calls at once."""

    def __init__(self, latency_s: float, concurrency: int) -> None:
        self._latency_s = latency_s
        self._places = asyncio.Semaphore(concurrency)

    async def chat(self, role: Role, messages: list[dict[str, Any]], **sampling: Any) -> Reply:
        first, last = map(int, read_sections(messages[1]["content"])["indices"].split("-"))
        async with self._places:
            await asyncio.sleep(self._latency_s)
        steps = [{"index": i, "analysis": "it went on", "label": "GOOD"} for i in range(first, last + 1)]
        return Reply(json.dumps({"steps": steps}), 1000, 20 * len(steps), self._latency_s, False)


async def phase(
    runner: RolloutRunner, rollouts: int, judge: TimedJudge | None, *, overlapped: bool
) -> tuple[float, list[float]]:
    """Return the seconds of a rollout phase, and the seconds each trajectory took to label."""
    attributor = Attributor(AttributionSettings(enable=True), judge, group_size=8) if judge else None
    waited: list[float] = []

    async def label(record: Trajectory) -> None:
        if attributor is not None:
            attribution = await attributor.label_steps(record, step=1)
            assert attribution.status is LabelStatus.LABELLED and not attribution.cached, attribution.reason
            waited.append(attribution.seconds)

    async def episode(number: int) -> Trajectory:
        rollout = await runner.run(Task(f"t{number}", "benchmark"), f"g{number // 8}", number % 8, {}, {})
        record = rollout.trajectory
        if overlapped:
            await label(record)
        return record

    began = time.perf_counter()
    records = await asyncio.gather(*(episode(number) for number in range(rollouts)))
    if not overlapped:
        await asyncio.gather(*map(label, records))
    return time.perf_counter() - began, waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds of a label call")
    parser.add_argument("--concurrency", type=int, default=32, help="label calls at once")
    parser.add_argument("--turns", type=int, nargs=2, default=[5, 30], metavar=("LEAST", "MOST"))
    parser.add_argument("--turn-seconds", type=float, nargs=2, default=[0.5, 1.5], metavar=("LEAST", "MOST"))
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(str(seed_policy_path()))
    renderer = ChatRenderer(tokenizer, {})
    ids = [*tokenizer.encode("note.find hat"), tokenizer.eos_token_id]

    def run(labelled: bool, overlapped: bool) -> tuple[float, list[float]]:
        policy = RolloutPolicy(max_steps=100, max_tries=1, sparse=True, unavailable_timeout_s=1.0)
        engine = TimedEngine(ids, tuple(arguments.turn_seconds))
        runner = RolloutRunner(
            policy, CountingEnv(tuple(arguments.turns)), engine, lambda: CausalTemplate(renderer, LIMITS)
        )
        judge = TimedJudge(arguments.latency, arguments.concurrency) if labelled else None
        return asyncio.run(phase(runner, arguments.rollouts, judge, overlapped=overlapped))

    plain, _ = run(labelled=False, overlapped=True)
    table = Table(
        title=f"{arguments.rollouts} rollouts, judge {arguments.latency:g} s x {arguments.concurrency} at once"
    )
    for name in ("labels", "phase s", "added", "p50 label s", "most"):
        table.add_column(name, justify="left" if name == "labels" else "right")
    table.add_row("none", f"{plain:.2f}", "", "", "")
    for name, overlapped in (("inside the episode", True), ("after the last rollout", False)):
        seconds, waited = run(labelled=True, overlapped=overlapped)
        added = f"{100 * (seconds / plain - 1):+.1f} %"
        table.add_row(name, f"{seconds:.2f}", added, f"{sorted(waited)[len(waited) // 2]:.2f}", f"{max(waited):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
