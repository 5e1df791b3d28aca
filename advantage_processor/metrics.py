"""What is reported about the labels, under AgentEvolver's names where it had one (docs/advantage_processor.md explains
each).

A rate is left out when nothing is there to take it of; no number stands in for one. Rows and tokens play no part: every
trajectory that counts counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from advantage_processor.batch import CreditBatch
from advantage_processor.labels import Attribution, LabelStatus


def label_metrics(batch: CreditBatch, labelled: Tensor, scores: Tensor, success_threshold: float) -> dict[str, float]:
    """Return what the judge did: counts, cost, and how its labels agree with the outcome.

    Args:
        batch: the training step.
        labelled: (T) whose labels are used.
        scores: (T, K) +1 GOOD, -1 BAD, 0 where there are no labels.
        success_threshold: an outcome above it is a success.
    """
    counted = [a for a, valid in zip(batch.attributions, batch.valid.tolist(), strict=True) if valid]
    use = labelled & batch.valid
    lengths = batch.lengths[batch.valid].double()
    report = _judge_metrics(counted)
    mismatched = sum(
        a.status is LabelStatus.LABELLED and len(a.good) != k
        for a, k in zip(batch.attributions, batch.lengths.tolist(), strict=True)
    )
    report |= {
        "prm/unlabelled": float((batch.valid & ~labelled).sum()),
        **rate("prm/labelled_rate", use[batch.valid].double()),
        **rate("prm/avg_steps_per_sample", lengths),
        **percentile("prm/p95_steps_per_sample", lengths),
        "prm/flags_len_mismatch_rate": mismatched / max(len(batch.attributions), 1),
        "prm/good_steps_total": float((scores[use] > 0).sum()),
        "prm/bad_steps_total": float((scores[use] < 0).sum()),
    }
    balance = scores.sum(1)
    positive = batch.outcomes > success_threshold
    for name, chosen, agrees in (("pos", use & positive, 1.0), ("neg", use & ~positive, -1.0)):
        said = scores[chosen][scores[chosen] != 0]
        report |= rate(f"prm/{name}_traj_good_rate", (said > 0).double())
        report |= rate(f"prm/{name}_traj_bad_rate", (said < 0).double())
        majority = "good" if agrees > 0 else "bad"
        report |= rate(f"prm/{name}_traj_prm_{majority}_majority_rate", (balance[chosen] * agrees > 0).double())
    sign = torch.where(positive, 1.0, -1.0)
    agreeing = (scores * sign[:, None])[use]
    return report | rate("prm/label_outcome_agreement", (agreeing[agreeing != 0] > 0).double())


def advantage_metrics(advantages: Tensor, mask: Tensor) -> dict[str, float]:
    """Return how large the advantages (T, K) of the steps that count are: mean, 99th percentile and maximum of |A|,
    step by step."""
    sizes = advantages[mask].abs()
    if not len(sizes):
        return {}
    return {
        **rate("advantage/abs_mean", sizes),
        **percentile("advantage/abs_p99", sizes, 0.99),
        "advantage/abs_max": float(sizes.max()),
    }


def _judge_metrics(attributions: Sequence[Attribution]) -> dict[str, float]:
    """Return counts and cost of a step's label calls; `parse_success_rate` is of the trajectories whose judge answered
    at all."""
    status = Counter(a.status for a in attributions)
    asked = [a for a in attributions if a.calls > 0]
    answered = [a for a in asked if a.status is LabelStatus.LABELLED or a.kind == "reply"]
    failures = Counter(a.kind for a in attributions if a.status is LabelStatus.FAILED)
    seconds = torch.tensor([a.seconds for a in asked], dtype=torch.float64)
    return {
        **{f"prm/{name.value}": float(status[name]) for name in LabelStatus},
        **{f"prm/failed/{kind}": float(count) for kind, count in failures.items()},
        "prm/cached": float(sum(a.cached for a in attributions)),
        "prm/calls": float(sum(a.calls for a in attributions)),
        "prm/repairs": float(sum(a.repairs for a in attributions)),
        "prm/prompt_tokens": float(sum(a.prompt_tokens for a in attributions)),
        "prm/completion_tokens": float(sum(a.completion_tokens for a in attributions)),
        "prm/cost": float(sum(a.cost for a in attributions)),
        **rate(
            "prm/parse_success_rate",
            torch.tensor([a.status is LabelStatus.LABELLED for a in answered], dtype=torch.float64),
        ),
        **rate("prm/label_seconds_mean", seconds),
        **percentile("prm/label_seconds_p95", seconds),
    }


def rate(name: str, values: Tensor) -> dict[str, float]:
    """Return the mean of numbers or truths, or nothing when there are none."""
    return {name: float(values.double().mean())} if len(values) else {}


def deviation(name: str, values: Tensor) -> dict[str, float]:
    """Return the population deviation, or nothing when there are no values."""
    return {name: float(values.double().std(correction=0))} if len(values) else {}


def percentile(name: str, values: Tensor, q: float = 0.95) -> dict[str, float]:
    """Return a percentile, interpolated, or nothing when there are no values."""
    return {name: float(values.double().quantile(q))} if len(values) else {}
