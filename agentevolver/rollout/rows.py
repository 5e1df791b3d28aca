"""Rows of the training batch: a rollout as verl's outputs, an output as a row, group ids, and the rows' order.

A rollout without a training sample still becomes one output, a placeholder marked `masked`, so that it is counted; the
trainer keeps such rows out of every statistic and of the gradient. Validation leaves out only what has no grade.

verl draws random ids for prompts and returns rows as they arrive. Here a group id holds the step, the task's place in
it, and a hash; rows are sorted by it. So a repeated run has the same ids, and sums over rows and mini-batches do not
depend on which rollout was quicker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from agentevolver.rollout.rollout import Rollout
from agentevolver.types import RowKey, TrainingSample
from agentevolver.utils import seeds

# What a row keeps of the dataset's row and of verl's own fields beside it.
KEPT = ("uid", "session_id", "index", "data_source", "reward_model", "global_steps")


def to_outputs(
    rollout: Rollout, eos_token_id: int, fallback_version: int, *, validation: bool
) -> list[AgentLoopOutput]:
    """Return verl's outputs of a rollout: one per training sample, or one masked placeholder if there is none.

    The last output alone carries the trajectory's record: beside the reward in verl's report for validation, else in a
    field of its own. `fallback_version` stands for the weight version if nothing was sampled.
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
    """Return a group id, `<step>-<place>-<hash>`; `place` is the task's among those of the step, from 0."""
    return f"{step:06d}-{place:05d}-{seeds.digest(seed, kind, step, place, task_id)[:5].hex()}"


def group_place(group_id: str) -> int:
    """Return the place of a group's task in its step."""
    return int(group_id.split("-")[1])


def row_order(keys: Sequence[str]) -> list[int]:
    """Return the indices of rows (`<group>_<rollout>_<row>`) in the order of group, rollout and row."""
    return sorted(range(len(keys)), key=lambda place: RowKey.of(keys[place]))
