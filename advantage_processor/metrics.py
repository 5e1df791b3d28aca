"""Metrics of labels and credit, with AgentEvolver's names where they exist (docs/advantage_processor.md).

Every valid trajectory counts once. A rate is left out if there is nothing to average.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from advantage_processor.adca import AdcaConfig, Credit, Steps
from advantage_processor.batch import CreditBatch
from agentevolver.types import Attribution, LabelStatus

# A standardised score below this counts as small.
SMALL_SCORE = 0.1


def label_metrics(batch: CreditBatch, labelled: Tensor, scores: Tensor, success_threshold: float) -> dict[str, float]:
    """Return the judge's counts and cost, and the agreement of its labels with the outcome.

    `labelled` (T): trajectories whose labels are used. `scores` (T, K): +1 GOOD, -1 BAD, 0 without labels.
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
    positive = batch.grades > success_threshold
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
    """Return mean, 99th percentile and maximum of |A| over the steps in `mask`."""
    sizes = advantages[mask].abs()
    if not len(sizes):
        return {}
    return {
        **rate("advantage/abs_mean", sizes),
        **percentile("advantage/abs_p99", sizes, 0.99),
        "advantage/abs_max": float(sizes.max()),
    }


def _judge_metrics(attributions: Sequence[Attribution]) -> dict[str, float]:
    status = Counter(a.status for a in attributions)
    asked = [a for a in attributions if a.calls > 0]
    # `parse_success_rate` counts only trajectories whose judge answered at all.
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
    return {name: float(values.double().mean())} if len(values) else {}


def deviation(name: str, values: Tensor) -> dict[str, float]:
    return {name: float(values.double().std(correction=0))} if len(values) else {}


def percentile(name: str, values: Tensor, q: float = 0.95) -> dict[str, float]:
    return {name: float(values.double().quantile(q))} if len(values) else {}


def credit_metrics(steps: Steps, credit: Credit, config: AdcaConfig, weight: float) -> dict[str, float]:
    """Return metrics of combining attribution and outcome. `weight` is the attribution's factor."""
    prefix = "prm/decouple" if config.scheme == "decouple" else "prm_allocation"
    labelled = steps.mask & (steps.valid & steps.labelled)[:, None]
    z, outcome, sums = credit.attribution[labelled], credit.outcome[steps.valid], credit.rewards.sum(1)
    spoken = steps.valid & (credit.outcome != 0)
    report = {
        f"{prefix}/alpha_effective": weight,
        **rate(f"{prefix}/attr_mean", z),
        **deviation(f"{prefix}/attr_std", z),
        **({f"{prefix}/attr_abs_max": float(z.abs().max())} if len(z) else {}),
        **rate(f"{prefix}/out_mean", outcome),
        **deviation(f"{prefix}/out_std", outcome),
        **rate(f"{prefix}/outcome_share_last_mean", _outcome_shares(steps, credit, config, weight)),
        **rate(f"{prefix}/sum_step_reward_sign_agree", (sums.sign() == credit.outcome.sign())[spoken]),
        f"{prefix}/zscore_bad_group_cnt": _groups_without_spread(steps, credit, labelled),
    }
    return report | (_allocation_metrics(steps, credit, config, labelled) if config.scheme == "allocation" else {})


def anchor_metrics(anchors: Tensor, sharing: Tensor, step_advantages: Tensor, mask: Tensor) -> dict[str, float]:
    return {
        "gigpo/anchor_states": float(len(set(anchors[mask].tolist()))),
        **rate("gigpo/shared_rate", sharing[mask]),
        **rate("gigpo/credited_rate", step_advantages[mask] != 0),
        **rate("gigpo/step_advantage_abs_mean", step_advantages[mask].abs()),
    }


def _outcome_shares(steps: Steps, credit: Credit, config: AdcaConfig, weight: float) -> Tensor:
    """Return the outcome's share of the last step's reward, where that is not 0."""
    last = (weight * credit.attribution.gather(1, (steps.lengths - 1).clamp_min(0)[:, None])[:, 0]).abs()
    outcome = torch.zeros_like(last) if config.outcome == "only_prm" else credit.outcome.abs()
    total = outcome + last
    return (outcome / total)[steps.valid & (total > 0)]


def _groups_without_spread(steps: Steps, credit: Credit, labelled: Tensor) -> float:
    """Return the number of labelled groups whose standardised scores are all 0."""
    judged, telling = labelled.any(1), (credit.attribution != 0).any(1)
    return float(len(set(steps.groups[judged].tolist())) - len(set(steps.groups[telling].tolist())))


def _allocation_metrics(steps: Steps, credit: Credit, config: AdcaConfig, labelled: Tensor) -> dict[str, float]:
    success = (steps.grades > config.success_threshold)[:, None].expand_as(labelled)
    good, judged = steps.scores > 0, labelled.any(1)
    shares, z, sums = credit.raw.abs(), credit.attribution, credit.raw.sum(1)
    means, deviations = _group_moments(z, labelled, steps.groups)
    units = (1.0 / _total_weights(steps, config))[judged]
    report = {
        "prm_allocation/degenerate_total_w_count": float((judged & (shares.sum(1) == 0)).sum()),
        **rate("prm_allocation/unit_weight_mean", units[units.isfinite()]),
        **percentile("prm_allocation/unit_weight_p95", units[units.isfinite()]),
        **percentile("prm_allocation/r_norm_group_mean_abs_p95", means.abs()),
        **percentile("prm_allocation/r_norm_group_std_p95", deviations),
        **rate(
            "prm_allocation/pre_norm_sum_sign_agree", (sums.sign() == torch.where(success[:, 0], 1.0, -1.0))[judged]
        ),
        **rate("prm_allocation/post_norm_sum_mean", z.sum(1)[judged]),
        **rate("prm_allocation/rnorm_small_mag_ratio", z[labelled].abs() < SMALL_SCORE),
    }
    for name, chosen in (("pos", labelled & success), ("neg", labelled & ~success)):
        whole = shares[chosen].sum()
        if whole > 0:
            report[f"prm_allocation/consistent_weight_share_{name}"] = float(
                shares[chosen & (good == success)].sum() / whole
            )
        pair = z[chosen & good], z[chosen & ~good]
        if all(len(part) for part in pair):
            report[f"prm_allocation/good_bad_rnorm_gap_{name}"] = float(pair[0].mean() - pair[1].mean())
    return report


def _total_weights(steps: Steps, config: AdcaConfig) -> Tensor:
    success = (steps.grades > config.success_threshold)[:, None]
    consistent = (((steps.scores > 0) == success) & steps.mask).sum(1)
    other = torch.where(success[:, 0], config.pos_unconsistent_scale, abs(config.neg_unconsistent_scale))
    return consistent * config.consistent_scale + (steps.lengths - consistent) * other


def _group_moments(z: Tensor, labelled: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    names, index = torch.unique(groups, return_inverse=True)
    zeros = torch.zeros(len(names), dtype=torch.float64)
    count = zeros.index_add(0, index, labelled.sum(1).double())
    there = count > 0
    mean = zeros.index_add(0, index, z.sum(1)) / count.clamp_min(1.0)
    square = zeros.index_add(0, index, (z**2).sum(1)) / count.clamp_min(1.0)
    return mean[there], (square - mean**2).clamp_min(0.0).sqrt()[there]
