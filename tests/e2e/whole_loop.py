"""The whole loop, small: questioning, navigating and attributing in ten steps, and all that a run says but the time."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentevolver.utils.files import read_jsonl
from benchmarks.digests import SPENT, TIMES
from experience_manager.store import Store

ALPHA, SYNTHETIC_SCALE = 0.1, 0.5
STEPS = tuple(range(1, 11))
WANTED = (
    "task_manager.n=1",
    "task_manager.max_seed_tasks=16",
    "task_manager.mixture.synthetic_data_ratio=1",
    f"task_manager.mixture.synthetic_advantage_scale={SYNTHETIC_SCALE}",
    "task_manager.curriculum.enable=true",
    "attribution_driven_credit_assignment.enable=true",
    f"attribution_driven_credit_assignment.adca_grpo.alpha={ALPHA}",
    "exp_manager.train_rollout_mode=mixed",
    "exp_manager.rollout_ratio=0.5",
    "exp_manager.val_rollout_mode=both",
    "exp_manager.init_exp_before_training=true",
    "exp_manager.init_rollouts=2",
    "exp_manager.init_tasks=8",
    "exp_manager.reme.enable_context_generator=true",
    "exp_manager.reme.enable_summarizer=true",
    "exp_manager.reme.updated_freq=1",
    "exp_manager.pruning.every_steps=2",
    "exp_manager.pruning.min_uses=4",
    "exp_manager.encoder.kind=hashing",
    'exp_manager.experience_template="tip {}\\n"',
    "exp_manager.retrieval.item_template='{content}'",
    "exp_manager.retrieval.separator=' ; '",
    "exp_manager.retrieval.max_chars=200",
    "data.train_filter.n=16",  # so that half of the tasks are synthetic, and an epoch ends after eight steps
    "data.val_filter.n=4",
    "actor_rollout_ref.rollout.val_kwargs.n=1",
    f"trainer.total_training_steps={len(STEPS)}",
    "trainer.test_freq=5",
    "trainer.val_before_train=false",
)

_SPENT_ON_A_ROLLOUT = ("cached", "calls", "repairs", "prompt_tokens", "completion_tokens", "cost", "seconds")


def said(directory: Path) -> dict[str, Any]:
    """Return all that a run says, times and spending left out: `kind/name` -> content."""
    found: dict[str, Any] = {}
    for record in read_jsonl(directory / "metrics.jsonl"):
        found[f"metrics/{record['step']}"] = {
            k: v for k, v in record.items() if k != "time" and not k.startswith((*TIMES, *SPENT))
        }
    for path in sorted((directory / "tasks").glob("*.jsonl")):
        found[f"tasks/{path.name}"] = read_jsonl(path)
    for kind in ("trajectories", "validation"):
        for path in sorted((directory / kind).glob("*.jsonl")):
            found[f"{kind}/{path.name}"] = [_timeless(record) for record in read_jsonl(path)]
    for path in sorted((directory / "samples").glob("*.jsonl")):
        found[f"samples/{path.name}"] = read_jsonl(path)
    with Store(directory / "experience.sqlite", create=False) as store:
        found["pool"] = [{**asdict(e), "created": 0, "modified": 0} for e in store.records("default")]
    return found


def _timeless(record: dict[str, Any]) -> dict[str, Any]:
    steps = [
        {key: value for key, value in step.items() if key not in ("env_s", "generate_s")} for step in record["steps"]
    ]
    judged = {key: value for key, value in record.get("attribution", {}).items() if key not in _SPENT_ON_A_ROLLOUT}
    return {**{key: value for key, value in record.items() if key != "seconds"}, "steps": steps, "attribution": judged}
