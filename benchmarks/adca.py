"""CPU time and memory of turning labels and outcomes into token advantages.

    python -m benchmarks.adca [--trajectories 1024 4096] [--steps 30] [--tokens 4096] [--repeats 7]

Three ways on the same batch, one thread: ours (`advantage_processor.adca`, step level and tokens), a loop over
trajectories written for this benchmark after the description of the original, and verl's vectorised GRPO, which has one
advantage a row and no steps. The two ADCA columns are compared number by number first. `processor` is the whole stage
pipeline with records, labels and metrics. Memory is the peak of resident memory over what was resident before, result
included.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from advantage_processor import AttributionSettings
from advantage_processor.adca import AdcaConfig, Steps, step_credit, to_tokens
from advantage_processor.batch import make_batch
from advantage_processor.pipeline import Processor
from agentevolver.types import Trajectory

GROUP = 8
ALPHA = 0.1


def make_inputs(trajectories: int, steps: int, tokens: int) -> dict[str, Any]:
    """Return a batch: every trajectory has 2/3 to all of the steps, and as many tokens, half of them sampled."""
    torch.manual_seed(0)
    lengths = torch.randint(max(1, 2 * steps // 3), steps + 1, (trajectories,))
    span = tokens // steps
    place = torch.arange(tokens)
    step_ids = (place // span).expand(trajectories, tokens).clone()
    step_ids[(place % span < span // 2).expand_as(step_ids) | (step_ids >= lengths[:, None])] = -1
    return {
        "scores": torch.where(torch.rand(trajectories, steps) < 0.5, 1.0, -1.0),
        "lengths": lengths,
        "outcomes": (torch.rand(trajectories) < 0.5).double(),
        "groups": torch.arange(trajectories) // GROUP,
        "step_ids": step_ids.int(),
        "mask": (step_ids >= 0).long(),
    }


def ours(x: dict[str, Any]) -> torch.Tensor:
    everything = torch.ones(len(x["lengths"]), dtype=torch.bool)
    steps = Steps(x["scores"], x["lengths"], x["outcomes"], x["outcomes"], x["groups"], everything, everything)
    return to_tokens(step_credit(steps, AdcaConfig(), ALPHA).advantages, torch.arange(len(everything)), x["step_ids"])


def loop(x: dict[str, Any]) -> torch.Tensor:
    """One trajectory and one step at a time, as the original is described."""
    flags = [row[:count].tolist() for row, count in zip(x["scores"], x["lengths"].tolist(), strict=True)]
    groups: dict[int, list[int]] = {}
    for i, group in enumerate(x["groups"].tolist()):
        groups.setdefault(group, []).append(i)
    advantages = torch.zeros(x["step_ids"].shape)
    for members in groups.values():
        raw = {i: [0.2 * flag for flag in flags[i]] for i in members}
        mu = float(np.mean([np.mean(raw[i]) for i in members]))
        sd = float(np.sqrt(np.mean([np.mean([(v - mu) ** 2 for v in raw[i]]) for i in members]) + 1e-8))
        outcomes = [float(x["outcomes"][i]) for i in members]
        mean, deviation = float(np.mean(outcomes)), float(np.std(outcomes))
        for i, outcome in zip(members, outcomes, strict=True):
            standard = (outcome - mean) / (deviation + 1e-12) if deviation > 1e-8 else outcome - mean
            rewards = [ALPHA * (value - mu) / (sd + 1e-12) for value in raw[i]]
            rewards[-1] += standard
            total = 0.0
            for k in range(len(rewards) - 1, -1, -1):
                total += rewards[k]
                advantages[i][x["step_ids"][i] == k] = total
    return advantages


def verl_grpo(x: dict[str, Any]) -> torch.Tensor:
    from verl.trainer.ppo.core_algos import compute_grpo_vectorized_outcome_advantage

    advantages, _ = compute_grpo_vectorized_outcome_advantage(x["rewards"], x["mask"], x["index"])
    return advantages


def with_records(x: dict[str, Any]) -> Callable[[], Any]:
    """Return the whole pipeline on records as the trainer has them."""
    records = []
    for i, (row, count) in enumerate(zip(x["scores"].tolist(), x["lengths"].tolist(), strict=True)):
        records.append(
            Trajectory.from_dict(
                {
                    "rollout_id": i % GROUP,
                    "messages": [],
                    "stop_reason": "finished",
                    "group_id": str(i // GROUP),
                    "task": {"task_id": "t"},
                    "steps": [{"index": k, "action": "", "observation": ""} for k in range(count)],
                    "outcome": {"score": float(x["outcomes"][i]), "success": True},
                    "attribution": {
                        "status": "labelled",
                        "good": [flag > 0 for flag in row[:count]],
                        "calls": 1,
                        "seconds": 1.0,
                    },
                }
            )
        )
    keys = [f"{record.trajectory_id}_0" for record in records]
    processor = Processor(AttributionSettings(enable=True))
    return lambda: processor.process(make_batch(1, records, keys, x["step_ids"]))


def measure(function: Callable[[], Any], repeats: int) -> tuple[float, float, float]:
    """Return the median and the least CPU milliseconds, and the MiB of peak memory over the memory before."""
    function()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - began))
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    result = function()
    peak = _memory("VmHWM") - before
    del result
    return sorted(times)[len(times) // 2], min(times), max(peak, 0.0)


def _memory(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return float(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title=f"{arguments.steps} steps, {arguments.tokens} tokens a trajectory; CPU ms, one thread")
    for name in ("trajectories", "", "median", "least", "peak MiB", "of that the result"):
        table.add_column(name, justify="right" if name else "left")
    for count in arguments.trajectories:
        x = make_inputs(count, arguments.steps, arguments.tokens)
        difference = float((ours(x) - loop(x)).abs().max())
        assert difference < 1e-5, f"ours and the loop differ by {difference}"
        x["rewards"] = torch.zeros(x["step_ids"].shape)
        x["rewards"][:, -1] = x["outcomes"].float()
        x["index"] = x["groups"].numpy()
        ways = {
            "ours": (lambda x=x: ours(x), arguments.repeats),
            "processor": (with_records(x), arguments.repeats),
            "loop over trajectories": (lambda x=x: loop(x), max(2, arguments.repeats // 3)),
            "verl GRPO, vectorised": (lambda x=x: verl_grpo(x), arguments.repeats),
        }
        for name, (function, repeats) in ways.items():
            median, least, peak = measure(function, repeats)
            result = 4 * count * arguments.tokens / 2**20
            table.add_row(str(count), name, f"{median:.1f}", f"{least:.1f}", f"{peak:.0f}", f"{result:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
