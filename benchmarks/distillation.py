"""What distilling a step's rollouts takes: calls and tokens, with a scripted summariser.

    python benchmarks/distillation.py [--preset original] [--tasks 32] [--rollouts 8] [--steps 24]

Trajectories of BFCL's size, drawn with a seed: an opening of 16,000 characters (function documents), so many steps of
about 500 characters of action (thinking and a call) and 800 of observation, a few of them long; half of the rollouts
succeed. The summariser finds three experiences in everything and approves of all. Tokens are characters / 4.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = os.environ.get("DISTILLATION_ROOT", str(Path(__file__).resolve().parents[1]))
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]

from agentevolver.llm import Role  # noqa: E402
from agentevolver.llm.prompts import read_sections, read_task  # noqa: E402
from experience_manager.attempts import Attempt, group_by_task  # noqa: E402
from experience_manager.distill import Distiller  # noqa: E402
from experience_manager.settings import ExperienceSettings  # noqa: E402

WORDS = (
    "read",
    "write",
    "move",
    "copy",
    "find",
    "send",
    "note",
    "file",
    "folder",
    "order",
    "ticket",
    "account",
    "status",
    "error",
    "date",
)
VERDICT = {"reason": "the transcript shows it", "valid": True, "score": 0.9}


class Scripted:
    """A summariser that answers at once and counts what it is asked."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()

    async def structured(self, role: Role, messages: list[dict[str, Any]], schema: Any, **_: Any) -> Any:
        """Return three lessons, or a verdict on each of those that are shown."""
        task = read_task(messages[0]["content"]).removeprefix("summariser/")
        self.calls[task] += 1
        self.tokens[task] += sum(len(message["content"]) for message in messages) // 4
        number = self.calls[task]
        lessons = [
            {"when_to_use": f"when {task} {number} {i}", "content": f"do {i}", "confidence": 0.9} for i in range(3)
        ]
        shown = len(re.findall(r"^\[\d+\]$", read_sections(messages[1]["content"]).get("experience", ""), re.MULTILINE))
        verdicts = [{"number": i + 1, **VERDICT} for i in range(shown)]
        return schema.model_validate(
            {**VERDICT, "judgements": verdicts} if task == "validate" else {"experiences": lessons}
        )


def text(rng: random.Random, chars: int) -> str:
    """Return about so many characters of words."""
    return " ".join(rng.choices(WORDS, k=max(1, chars // 6)))


def attempts(tasks: int, rollouts: int, steps: int, seed: int = 0) -> list[Attempt]:
    """Return rollouts of BFCL's size."""
    rng = random.Random(seed)
    made = []
    for task in range(tasks):
        opening = text(rng, 16_000)
        for number in range(rollouts):
            taken = max(4, round(rng.gauss(steps, steps / 5)))
            sizes = [
                (round(rng.lognormvariate(6.1, 0.5)), min(16_000, round(rng.lognormvariate(6.0, 1.2))))
                for _ in range(taken)
            ]
            score = 1.0 if number % 2 else rng.random() * 0.9
            made.append(
                Attempt(
                    task_id=f"t{task}",
                    trajectory_id=f"t{task}_{number}",
                    opening=opening,
                    task=text(rng, 300),
                    steps=tuple(
                        (i, text(rng, action), text(rng, observation)) for i, (action, observation) in enumerate(sizes)
                    ),
                    score=score,
                    success=score >= 1.0,
                )
            )
    return made


def main() -> None:
    """Distil one step's rollouts, and print what was asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", choices=("default", "paper", "original"), default="original")
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    settings = ExperienceSettings.model_validate({"preset": options.preset})
    made = attempts(options.tasks, options.rollouts, options.steps)
    groups = [made] if settings.distillation.grouping == "batch" else group_by_task(made, settings.summary_batch_size)
    llm = Scripted()
    distiller = Distiller(llm, settings.distillation)

    async def distil() -> int:
        return sum([len((await distiller.distil(group, 1)).experiences) for group in groups])

    kept = asyncio.run(distil())
    shown = (
        sum(len(action) + len(observation) for one in made for _, action, observation in one.steps) // 4 // len(made)
    )
    print(f"{len(made)} rollouts of {shown:,} tokens on average, preset {options.preset}: {kept} experiences")
    for task in llm.calls:
        print(f"  {task:<12} {llm.calls[task]:>6,} calls {llm.tokens[task]:>12,} tokens")
    print(f"  {'all':<12} {sum(llm.calls.values()):>6,} calls {sum(llm.tokens.values()):>12,} tokens")


if __name__ == "__main__":
    main()
