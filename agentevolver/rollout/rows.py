"""Rows of the training batch: rollouts as verl's outputs and rows, group ids, and the order of rows.

A rollout without a sample becomes a placeholder row marked `masked`, which the trainer keeps out of statistics and
gradient. Group ids and row order are deterministic, so sums do not depend on which rollout finished first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from agentevolver.rollout.rollout import Rollout
from agentevolver.types import RowKey, TrainingSample
from agentevolver.utils import seeds

# Fields copied from the dataset's row and from verl.
KEPT = ("uid", "session_id", "index", "data_source", "reward_model", "global_steps")


def to_outputs(
    rollout: Rollout, eos_token_id: int, fallback_version: int, *, validation: bool
) -> list[AgentLoopOutput]:
    """Return one output per training sample, or one masked placeholder.

    Only the last output carries the trajectory's record: in `reward_extra_info` for validation, else in a separate
    field. `fallback_version` is the weight version if nothing was sampled.
    """
    trajectory, outcome = rollout.trajectory, rollout.trajectory.outcome
    masked = not rollout.samples
    samples = rollout.samples or [TrainingSample([eos_token_id], [eos_token_id], [0], [0.0], [-1])]
    versions = rollout.versions or {fallback_version}
    report = {"success": float(outcome.success) if outcome else 0.0, "masked": float(outcome is None)}
    outputs = []
    for index, sample in enumerate(samples):
        extra: dict[str, Any] = {
            "min_global_steps": min(versions),
            "max_global_steps": max(versions),
            "masked": masked,
            "step_ids": sample.step_ids,
            "reward_extra_info": report,
        }
        if index == len(samples) - 1:
            last = {"trajectory": trajectory.to_dict()}
            extra |= {"reward_extra_info": {**report, **last}} if validation else last
        outputs.append(
            AgentLoopOutput(
                prompt_ids=sample.prompt_ids,
                response_ids=sample.response_ids,
                response_mask=sample.response_mask,
                response_logprobs=sample.log_probs,
                reward_score=outcome.score if outcome else 0.0,
                num_turns=2 * len(trajectory.steps),
                metrics=AgentLoopMetrics(generate_sequences=rollout.generate_s, tool_calls=rollout.env_s),
                extra_fields=extra,
            )
        )
    return outputs


def to_row(output: AgentLoopOutput, row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return fields and tag of one output, as verl's trainer reads them from TransferQueue.

    Tensor fields: `prompts` (P), `responses`, `response_mask`, `loss_mask`, `rollout_log_probs`, `rm_scores` (R, the
    score on the last token), `input_ids` and `position_ids` (P + R).
    """
    prompts, responses = torch.tensor(output.prompt_ids), torch.tensor(output.response_ids)
    mask = torch.tensor(output.response_mask)
    rm_scores = torch.zeros(len(responses), dtype=torch.float32)
    rm_scores[-1] = output.reward_score
    input_ids = torch.cat([prompts, responses])
    fields = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "loss_mask": mask,
        "rollout_log_probs": torch.tensor(output.response_logprobs, dtype=torch.float32),
        "rm_scores": rm_scores,
        "input_ids": input_ids,
        "position_ids": torch.arange(len(input_ids)),
        "num_turns": output.num_turns,
        "extra_fields": output.extra_fields,
        **{name: row[name] for name in KEPT},
    }
    tag = {
        "status": "success",
        "prompt_len": len(prompts),
        "response_len": len(responses),
        "seq_len": len(input_ids),
        "global_steps": row["global_steps"],
        "min_global_steps": output.extra_fields["min_global_steps"],
        "max_global_steps": output.extra_fields["max_global_steps"],
    }
    return fields, tag


def group_name(seed: int, kind: str, step: int, place: int, task_id: str) -> str:
    """Return a group id, `<step>-<place>-<hash>`; `place` is the index of the task in its step, from 0."""
    # verl's ids are random; these are the same in a repeated run, and sort by step and place.
    return f"{step:06d}-{place:05d}-{seeds.digest(seed, kind, step, place, task_id)[:5].hex()}"


def group_place(group_id: str) -> int:
    return int(group_id.split("-")[1])


def row_order(keys: Sequence[str]) -> list[int]:
    """Return the indices of rows (`<group>_<rollout>_<row>`), sorted by group, rollout and row."""
    return sorted(range(len(keys)), key=lambda place: RowKey.of(keys[place]))
