"""What runs of a real model reached, and what a step of them took: one table, one CSV.

    python -m benchmarks.real_model experiments/pocket/small_model_1 [FOLDER...] [--out docs/tables/real_model]

Reads `metrics.jsonl`, `validation/` and `samples/` of each folder. Gains are paired over tasks, from the first
validation (after the cold start) to the last. Entropy is the mean of -log p of the sampled tokens, in nats a token,
over the first and the last five steps. `log_prob_diff` is |engine - trainer|, in nats a token, where the run measured
it.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from agentevolver.trainer.mismatch import MEAN
from agentevolver.trainer.monitor.results import compare, measured_of, records, validations
from agentevolver.utils.files import read_jsonl

PHASES = {"gen": "timing_s/gen", "update": "timing_s/update_actor", "sync": "timing_s/update_weights"}
TRAINED = "perf/total_num_tokens"
ENDS = 5


def entropy(folder: Path, steps: Iterable[int]) -> float | None:
    """Return the mean of -log p over the sampled tokens of these steps, in nats; None without samples."""
    sampled = [
        -log_prob
        for step in steps
        if (path := folder / "samples" / f"step_{step}.jsonl").is_file()
        for row in read_jsonl(path)
        for log_prob, mask in zip(row["rollout_log_probs"], row["response_mask"], strict=True)
        if mask
    ]
    return mean(sampled) if sampled else None


def row_of(folder: Path) -> dict[str, Any]:
    """Return a run's line: validations, gain, and the median step."""
    (found,) = compare(folder)
    every = [*records(folder)]
    trained = [record for record in every if "rollout/success" in record]
    rollouts = sum(record["rollout/trajectories"] for record in trained)
    row: dict[str, Any] = {"run": folder.name}
    for validation in validations(folder)[found.source]:
        row[f"avg@{validation.n}, step {validation.step}"] = validation.average
        row[f"best@{validation.n}, step {validation.step}"] = validation.best
    row["gain"], row["± (95 %)"] = (found.gain.mean, found.gain.half) if found.gain else (None, None)
    last = measured_of(next(r for r in reversed(every) if f"val-aux/{found.source}/rollouts" in r))[found.source]
    row["never acted, last validation"] = last.never_acted / last.rollouts
    row["never acted, training"] = sum(record["rollout/never_acted"] for record in trained) / rollouts
    row["cut, training"] = sum(record["rollout/cut"] for record in trained) / rollouts
    row["groups without signal"] = mean(record["rollout/groups_without_signal"] for record in trained)
    steps = [int(record["step"]) for record in trained]
    row["entropy, first steps"], row["entropy, last steps"] = (
        entropy(folder, steps[:ENDS]),
        entropy(folder, steps[-ENDS:]),
    )
    compared = [record[MEAN] for record in trained if MEAN in record]
    row["log_prob_diff"] = max(compared) if compared else None
    for name, key in PHASES.items():
        row[f"{name} s"] = median(record[key] for record in trained)
    row["step s"] = median(record["timing_s/step"] for record in trained)
    row["sampled tokens/s"] = median(record["rollout/tokens_per_s"] for record in trained)
    row["update tokens/s"] = median(record[TRAINED] / record[PHASES["update"]] for record in trained)
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="CSV to write, without its suffix")
    options = parser.parse_args(arguments)
    rows = [row_of(folder) for folder in options.folders]
    names = [*dict.fromkeys(name for row in rows for name in row)]
    table = Table("", *(row["run"] for row in rows))
    for name in names[1:]:
        table.add_row(name, *("" if row.get(name) is None else f"{row[name]:.3g}" for row in rows))
    Console().print(table)
    if options.out:
        with options.out.with_suffix(".csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
