"""What the two trainings of a round say differently about rewards, advantages and clips: keys of the configuration by
their full names."""

from __future__ import annotations

from typing import Any

from agentevolver.config.schema import Settings

GRADER = "agentevolver.coevolve.frontier:FrontierGrader"
REWARD = "agentevolver.coevolve.proposer_reward:ProposerReward"
_CREDIT = "attribution_driven_credit_assignment"


def proposer_keys(checkpoint: str) -> dict[str, Any]:
    """Return the keys of a proposer's training: its proposals are measured by the frozen executor at `checkpoint`, and
    rewarded over the step's batch. An episode is one step, so no step is credited."""
    return {
        "task_manager.grader.original_grader": GRADER,
        "trainer.reward_stages": [{"use": REWARD}],
        "coevolve.frozen": checkpoint,
        f"{_CREDIT}.enable": False,
    }


def executor_keys(settings: Settings, *, norm_by_std: bool = True) -> dict[str, Any]:
    """Return the keys of an executor's training: ADPO, with `keep` as its bounds, on top of the configuration's own
    step credit where it has some, else of GRPO; nothing where ADPO is off.

    Args:
        settings: of the rounds.
        norm_by_std: `algorithm.norm_adv_by_std_in_grpo`.
    """
    section = settings.coevolve
    if not section.adpo.enable:
        return {}
    lo, hi = section.keep
    bounds = {"lo": lo, "hi": hi}
    credit = settings.attribution
    own: list[dict[str, Any]] = (
        [stage.model_dump() for stage in credit.stages]
        if credit.enable
        else [{"use": "outcome", "norm_by_std": norm_by_std}]
    )
    return {
        f"{_CREDIT}.enable": True,
        **({} if credit.enable else {f"{_CREDIT}.attributor": "none"}),
        f"{_CREDIT}.stages": [*own, {"use": "ambiguity", **bounds, "s_min": section.adpo.s_min}],
        "trainer.row_clips": [
            *(rule.model_dump() for rule in settings.trainer.row_clips),
            {"use": "ambiguity", **bounds, "bonus": section.adpo.bonus},
        ],
    }
