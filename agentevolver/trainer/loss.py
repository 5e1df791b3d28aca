"""Selective boosting: verl's policy loss with an upper clip for each sample (paper, eq. 17).

    L = -min(r A, clip(r, 1 - low, 1 + high_j) A)
    high_j = the sample's own bound if A > 0 (agentevolver.trainer.row_clips), else clip_ratio_high

Without differing bounds the result is bitwise verl's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from agentevolver.config.loss_modes import BOOSTED
from agentevolver.trainer.mismatch import MEAN

# Batch columns with one number a row: its upper clip, and whether text was injected into its rollout (0 or 1).
CLIP_COLUMN = "clip_ratio_high"
GUIDED_COLUMN = "guided"
# Index of the row's group in `groups`, whose clipped tokens are reported separately.
GROUP_COLUMN = "clip_group"
# Number of rows in its mini-batch, over all ranks, with a token that is trained on.
ROWS_COLUMN = "mini_batch_rows"
TRAJECTORY = "trajectory"
# Suffix of sums over tokens, which `finish_metrics` turns into means.
SUM = "_token_sum"
# Bounds are stored as float32, so they are compared with a tolerance.
TOLERANCE = 1e-6


def selective_ppo_loss(
    config: Any,
    model_output: Any,
    data: Any,
    dp_group: Any = None,
    *,
    kl_to: str = "reference",
    groups: Sequence[str] = (),
    compares: bool = False,
) -> tuple[Any, Any]:
    """Return loss and metrics of a micro-batch with B rows.

    Args:
        config: verl's ActorConfig.
        model_output: `log_probs` and perhaps `entropy` of prompts and responses.
        data: columns `clip_ratio_high`, `guided`, `clip_group`, `mini_batch_rows` (B each) are optional.
        kl_to: "reference", or "old" for the KL to the sampling policy (paper).
        groups: names of the groups that `clip_group` numbers from 0.
        compares: whether `old_log_probs` are the engine's and the weights those that sampled, so that the difference
            of the log-probs is the training-inference mismatch.

    Raises ValueError if the loss mode has no per-sample bounds, or a column has not one number a row.
    """
    mode = config.policy_loss.get("loss_mode", "vanilla")
    bounds = row_numbers(data, CLIP_COLUMN)
    guided, places = row_numbers(data, GUIDED_COLUMN), row_numbers(data, GROUP_COLUMN)
    data = with_counts(data)
    if kl_to == "old" and config.use_kl_loss:
        data["ref_log_prob"] = data["old_log_probs"]
    if bounds is None and guided is None and not compares:
        plain: tuple[Any, Any] = ppo_loss(config=config, model_output=model_output, data=data, dp_group=dp_group)
        return plain
    batch = data.select("old_log_probs", "advantages", "response_mask").to_padded_tensor()
    usual = float(config.clip_ratio_high)
    boosted = bounds is not None and bool(((bounds - usual).abs() > TOLERANCE).any())
    upper = token_bounds(bounds, batch["advantages"], usual) if bounds is not None and boosted else usual
    if boosted and mode not in BOOSTED:
        raise ValueError(
            f"policy_loss.loss_mode = {mode!r} has no upper clip for each sample; use {', '.join(BOOSTED)}, or "
            "leave out selective_boosting and row_clips"
        )
    chosen = with_bounds(config, upper, batch["advantages"]) if isinstance(upper, torch.Tensor) else config
    loss, metrics = ppo_loss(config=chosen, model_output=model_output, data=data, dp_group=dp_group)
    if guided is None and places is None and not compares:
        return loss, metrics
    log_prob = no_padding_2_padding(model_output["log_probs"], data).detach()
    if guided is not None or places is not None:
        ratio = ratios(log_prob, batch["old_log_probs"], batch["response_mask"].float(), mode)
        if guided is not None:
            metrics.update(_apart(guided, ratio, batch, upper, config))
        if places is not None:
            metrics.update(_clipped_above(groups, places, ratio, batch, upper, usual))
    if compares:
        mask = batch["response_mask"].float()
        gap = (log_prob - batch["old_log_probs"]).abs() * mask
        metrics |= {f"actor/compared_gap{SUM}": _sum(gap), f"actor/compared_tokens{SUM}": _sum(mask)}
    return loss, metrics


def token_bounds(bounds: torch.Tensor, advantages: torch.Tensor, usual: float) -> torch.Tensor:
    """Return the upper clip of each token (B, R): `bounds` (B) if the advantage is positive, else `usual`."""
    own = bounds.to(advantages.device, advantages.dtype)[:, None].expand_as(advantages)
    return torch.where(advantages > 0, own, torch.full_like(own, usual))


def with_bounds(config: Any, upper: torch.Tensor, like: torch.Tensor) -> Any:
    """Return a copy of verl's configuration with tensors as clips."""
    # torch.clamp takes two tensors or two numbers, so the lower clip becomes a tensor as well.
    view = copy.copy(config)
    # The dataclass is frozen; this copy is private to the call.
    object.__setattr__(view, "clip_ratio_high", upper)
    object.__setattr__(view, "clip_ratio_low", torch.full_like(like, float(config.clip_ratio_low)))
    return view


def with_counts(data: Any) -> Any:
    """Return a shallow copy of a micro-batch with the divisors of verl's loss corrected: the mini-batch's trained
    tokens and unmasked rows, at least 1 each."""
    # verl 0.9.1 divides by all rows, padding and masked rows included, and computes 0 / 0 if no token is trained on.
    data = data.clone(recurse=False)
    rows = row_numbers(data, ROWS_COLUMN)
    if rows is not None:
        tu.assign_non_tensor(data, global_batch_size=max(int(rows[0]), 1))
    tu.assign_non_tensor(data, batch_num_tokens=max(data["batch_num_tokens"], 1))
    return data


def row_numbers(data: Any, name: str) -> torch.Tensor | None:
    """Return a column as floats (B), or None if it is missing. Raises ValueError if it has not one number a row."""
    if name not in data:
        return None
    column = data[name]
    values = column.values() if getattr(column, "is_nested", False) else torch.as_tensor(column)
    if values.numel() != len(data):
        raise ValueError(f"column {name!r} holds {values.numel()} numbers for {len(data)} rows, expected one a row")
    return values.reshape(-1).float()


@register_policy_loss(TRAJECTORY)
def compute_policy_loss_trajectory(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The clipped objective with one ratio a row (eq. 17), and a gradient for every token. All shapes (B, R).

    s = (pi(row) / pi_old(row)) ^ (1 / tokens); r_t = sg(s) pi_t / sg(pi_t) (GSPO-token, arXiv 2507.18071, eq. 13-14).
    Clips, dual clip and metrics are those of `vanilla`.
    """
    # A token's gradient has the sign of its own advantage. The exponent 1 / tokens keeps long rows inside the clip.
    tokens = response_mask.sum(dim=-1, keepdim=True).clamp(min=1)
    log_ratio = ((log_prob - old_log_prob) * response_mask).sum(dim=-1, keepdim=True).detach() / tokens
    result: tuple[torch.Tensor, dict[str, Any]] = compute_policy_loss_vanilla(
        old_log_prob=torch.zeros_like(log_prob),
        log_prob=log_prob - log_prob.detach() + log_ratio,
        advantages=advantages,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    return result


def ratios(log_prob: torch.Tensor, old_log_prob: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    """Return the ratio that a loss mode clips, for each token (B, R)."""
    log_ratio = (log_prob - old_log_prob) * mask
    if mode in ("gspo", TRAJECTORY):
        log_ratio = (log_ratio.sum(dim=-1, keepdim=True) / mask.sum(dim=-1, keepdim=True).clamp(min=1)).expand_as(
            log_prob
        )
    return torch.exp(log_ratio.clamp(-20.0, 20.0))


def _apart(
    guided: torch.Tensor, ratio: torch.Tensor, batch: Any, upper: torch.Tensor | float, config: Any
) -> dict[str, Metric]:
    # verl requires the same metric keys from each micro-batch, so both sums are returned even if one kind is absent.
    mask, advantages = batch["response_mask"].float(), batch["advantages"]
    over = ratio > 1 + upper
    under = ratio < 1 - float(config.clip_ratio_low)
    clipped = torch.where(advantages > 0, over, (advantages < 0) & under)
    sums = {}
    for name, rows in (("guided", guided > 0), ("unguided", guided <= 0)):
        weight = mask * rows.to(mask.device)[:, None]
        for quantity, values in (("tokens", torch.ones_like(mask)), ("clipped", clipped.float()), ("ratio", ratio)):
            sums[f"actor/{name}_{quantity}{SUM}"] = _sum(values * weight)
    return sums


def _clipped_above(
    groups: Sequence[str],
    places: torch.Tensor,
    ratio: torch.Tensor,
    batch: Any,
    upper: torch.Tensor | float,
    usual: float,
) -> dict[str, Metric]:
    mask = batch["response_mask"].float()
    rising = batch["advantages"] > 0
    clipped = (rising & (ratio > 1 + upper)).float()
    # `freed`: tokens above the usual clip but below their own, wider one.
    freed = (rising & (ratio > 1 + usual)).float() - clipped
    sums = {}
    for place, name in enumerate(groups):
        weight = mask * (places.round() == place).to(mask.device)[:, None]
        for quantity, values in (
            ("tokens", torch.ones_like(mask)),
            ("clipped", clipped),
            ("freed", freed.clamp(min=0)),
        ):
            sums[f"actor/p_{name}_{quantity}{SUM}"] = _sum(values * weight)
    return sums


def _sum(values: torch.Tensor) -> Metric:
    return Metric(AggregationType.SUM, values.sum().item())


def finish_metrics(metrics: Mapping[str, Any], groups: Sequence[str] = ()) -> dict[str, Any]:
    """Turn sums over tokens into means, and return all metrics.

    `actor/clip_hi`: share of tokens above their own upper clip. `actor/clip_freed`: share above the usual clip only.
    """
    done = {key: value for key, value in metrics.items() if not key.endswith(SUM)}
    if compared := float(metrics.get(f"actor/compared_tokens{SUM}", 0.0)):
        done[MEAN] = float(metrics[f"actor/compared_gap{SUM}"]) / compared
    for name in ("guided", "unguided"):
        tokens = float(metrics.get(f"actor/{name}_tokens{SUM}", 0.0))
        if tokens > 0:
            done[f"actor/{name}/clipfrac"] = float(metrics[f"actor/{name}_clipped{SUM}"]) / tokens
            done[f"actor/{name}/ratio"] = float(metrics[f"actor/{name}_ratio{SUM}"]) / tokens
    counts = {name: float(metrics.get(f"actor/p_{name}_tokens{SUM}", 0.0)) for name in groups}
    total = sum(counts.values())
    for quantity, metric in (("clipped", "clip_hi"), ("freed", "clip_freed")) if total > 0 else ():
        sums = {name: float(metrics[f"actor/p_{name}_{quantity}{SUM}"]) for name in groups}
        done[f"actor/{metric}"] = sum(sums.values()) / total
        done |= {f"actor/{metric}/{name}": sums[name] / counts[name] for name in groups if counts[name] > 0}
    return done


def guidance_metrics(
    guided: Sequence[bool],
    boosted: Sequence[bool],
    scores: Sequence[float],
    advantages: Sequence[float],
    tokens: Sequence[int],
) -> dict[str, float]:
    """Return metrics of guided and unguided rows. Arguments have one value a row; `advantages` are means over its
    `tokens`."""
    if not guided:
        return {}
    total = max(sum(tokens), 1)
    out = {
        "exp_manager/guided_share": sum(map(bool, guided)) / len(guided),
        "exp_mask_ratio": sum(count for count, wide in zip(tokens, boosted, strict=True) if wide) / total,
    }
    for name, wanted in (("guided", True), ("unguided", False)):
        rows = [i for i, flag in enumerate(guided) if bool(flag) is wanted]
        if rows:
            out[f"exp_manager/{name}/reward"] = sum(scores[i] for i in rows) / len(rows)
            out[f"exp_manager/{name}/advantage"] = sum(advantages[i] for i in rows) / len(rows)
            out[f"exp_manager/{name}/tokens"] = sum(tokens[i] for i in rows) / len(rows)
    return out
