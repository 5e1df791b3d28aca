"""The section `attribution_driven_credit_assignment`, with AgentEvolver's keys.

A key that the chosen mode does not read is refused if its value is not the default. Imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentevolver.utils.recipes import StageSettings as StageSettings

# Keys that only attributor `llm` reads.
JUDGE_KEYS = (
    "model",
    "concurrent",
    "api_max_retries",
    "llm_evaluation_log_dir",
)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def _changed(self, *names: str) -> str | None:
        fields = type(self).model_fields
        return next((name for name in names if getattr(self, name) != fields[name].default), None)

    def _refuse(self, reason: str, *names: str) -> None:
        changed = self._changed(*names)
        if changed is not None:
            raise ValueError(f"{changed} = {getattr(self, changed)!r} would have no effect: {reason}; remove {changed}")


class AdcaGrpoSettings(_Section):
    """How labels and outcomes become advantages (`adca_grpo`)."""

    preset: Literal["original", "paper"] = Field(
        default="original",
        description="original: the deviation of steps, fix_base 0.2; paper: that of trajectory means (eq. 18), 1.0",
    )
    prm_scheme: Literal["decouple", "allocation"] = Field(
        default="decouple",
        description="decouple: a label is +-fix_base; allocation: the outcome's sign, divided by labels",
    )
    do_batch_norm: bool = Field(default=True, description="standardise step scores within a group")
    equal_trajectory_weight: bool = Field(
        default=True, description="each trajectory has one vote in mean and deviation; false: each step"
    )
    fix_base: float | None = Field(
        default=None, gt=0, description="size of a decoupled score; no effect with do_batch_norm"
    )
    alpha: float = Field(default=0.1, ge=0, description="weight of the attribution beside the outcome's 1")
    alpha_cosine_decay_enable: bool = Field(
        default=False, description="alpha goes to alpha_min over total_steps, along half a cosine"
    )
    alpha_min: float = Field(default=0.0, ge=0, description="where the schedule ends")
    total_steps: int = Field(default=100, ge=1, description="training steps of the schedule")
    orm_distribution: Literal["last_step", "all_steps", "only_prm"] = Field(
        default="last_step",
        description="where the outcome is added: last step, every step, nowhere (only_prm, without alpha)",
    )
    enable_length_normalization: bool = Field(
        default=False, description="divide step rewards by the root of the number of steps (decouple)"
    )
    prm_steps: int = Field(default=100, ge=0, description="number of training steps with attribution")
    skip_type: Literal["none", "skip_small_adv", "skip_all_neg"] = Field(
        default="none", description="rollouts without labels: none; those with group advantage 0; failed ones"
    )
    enable_adca_metric: bool = Field(
        default=False, description="with enable: false, label and report, without changing advantages"
    )

    @model_validator(mode="after")
    def _check(self) -> AdcaGrpoSettings:
        if not self.alpha_cosine_decay_enable:
            self._refuse("alpha_cosine_decay_enable is false", "alpha_min", "total_steps")
        if self.prm_scheme == "allocation":
            # Copied configurations of AgentEvolver spell out the default.
            if self.fix_base != 0.2:
                self._refuse("prm_scheme allocation has no base", "fix_base")
            self._refuse("prm_scheme allocation has no length normalisation", "enable_length_normalization")
            if self.orm_distribution == "only_prm":
                raise ValueError(
                    "orm_distribution = only_prm needs prm_scheme = decouple: an allocation is made of the outcome"
                )
        if self.do_batch_norm and self.fix_base not in (None, 0.2):
            self._refuse("do_batch_norm standardises the size of a score away", "fix_base")
        if not self.do_batch_norm:
            self._refuse("do_batch_norm is false, nothing is standardised", "equal_trajectory_weight")
        return self


class GigpoSettings(_Section):
    """Step credit from anchor states (`gigpo`, arXiv 2505.10978)."""

    gamma: float = Field(default=0.95, ge=0, le=1, description="discount of a step's return")
    # As in the paper: step and outcome advantages have equal weight.
    omega: ClassVar[float] = 1.0
    rewards: Literal["outcome", "env"] = Field(default="outcome", description="source of the returns")


class AttributionSettings(_Section):
    """The section `attribution_driven_credit_assignment`."""

    enable: bool = Field(
        default=False, description="step-level credit; false: every step gets its trajectory's outcome advantage"
    )
    attributor: Literal["llm", "gigpo", "env", "none"] = Field(
        default="llm",
        description="who credits steps: the attributor role's labels, anchor states, or the environment's step "
        "rewards; none: no labels, and `stages` must not contain `attribution`",
    )
    evaluation_type: Literal["api"] | None = Field(default=None, description="AgentEvolver's name for attributor: llm")
    model: str | None = Field(default=None, min_length=1, description="the judge; null: the attributor role's model")
    concurrent: int | None = Field(
        default=None, ge=1, description="label calls in flight per process; null: the attributor role's limit"
    )
    api_max_retries: int | None = Field(
        default=None, ge=0, description="repeats of a failed call; null: the attributor role's"
    )
    consistent_scale: float = Field(
        default=1.0, ge=0, description="allocation: weight of a label that agrees with the outcome"
    )
    pos_unconsistent_scale: float = Field(default=0.2, ge=0, description="allocation: weight of a BAD in a success")
    neg_unconsistent_scale: float = Field(
        default=-0.2, description="allocation: weight of a GOOD in a failure; its absolute value counts"
    )
    # A grade (0..1) above this counts as a success.
    success_threshold: ClassVar[float] = 0.5
    # A label call of 40 steps fits a judge of 32k tokens with room for its reply.
    window_steps: ClassVar[int] = 40
    # Limit of an action or observation in a label prompt; longer ones lose their middle.
    max_chars: ClassVar[int] = 2000
    # Labels take seconds; after five minutes the training step goes on without them.
    timeout_s: ClassVar[float] = 300.0
    # skip_small_adv waits for the slowest rollout of a group, at most ten minutes.
    group_wait_s: ClassVar[float] = 600.0
    llm_evaluation_log_dir: Path | None = Field(
        default=None, description="folder of a log with prompt, reply and labels of each trajectory"
    )
    adca_grpo: AdcaGrpoSettings = AdcaGrpoSettings()
    gigpo: GigpoSettings = GigpoSettings()
    stages: tuple[StageSettings, ...] = Field(
        default=(StageSettings(use="outcome"), StageSettings(use="attribution"), StageSettings(use="hybrid_scale")),
        description="the stages in order: names, or mappings with `use` and the stage's options",
    )

    @property
    def active(self) -> bool:
        """Whether steps are attributed, if only for metrics."""
        return self.enable or self.adca_grpo.enable_adca_metric

    def attributed_at(self, step: int) -> bool:
        """Whether rollouts of a training step are attributed. Steps count from 1."""
        return self.active and step <= self.adca_grpo.prm_steps

    def labels_wanted(self, step: int) -> bool:
        """Whether the judge is asked at a training step (from 1)."""
        return self.attributor == "llm" and self.attributed_at(step)

    @model_validator(mode="after")
    def _check(self) -> AttributionSettings:
        if self.evaluation_type == "api" and self.attributor != "llm":
            raise ValueError(
                f"evaluation_type = api means attributor = llm, found attributor = {self.attributor}: remove "
                "evaluation_type"
            )
        if self.attributor != "llm":
            self._refuse(f"attributor {self.attributor} asks no judge", *JUDGE_KEYS)
            self.adca_grpo._refuse(f"attributor {self.attributor} asks no judge", "skip_type")
        if self.attributor == "gigpo":
            unread = [name for name in AdcaGrpoSettings.model_fields if name not in ("prm_steps", "enable_adca_metric")]
            self.adca_grpo._refuse("attributor gigpo has a formula of its own", *unread)
        self._check_stages()
        if self.attributor != "gigpo":
            self.gigpo._refuse(f"attributor is {self.attributor}", *GigpoSettings.model_fields)
        if self.attributor == "env" and self.adca_grpo.prm_scheme == "allocation":
            raise ValueError(
                "prm_scheme = allocation needs labels, attributor env has rewards: write prm_scheme = decouple"
            )
        if self.adca_grpo.prm_scheme == "decouple":
            self._refuse_scales()
        return self

    def _check_stages(self) -> None:
        used = [stage.use for stage in self.stages]
        if self.attributor == "none":
            self.adca_grpo._refuse("attributor is none", *AdcaGrpoSettings.model_fields)
            if "attribution" in used:
                raise ValueError(
                    "attributor = none, so the stage attribution has no source of credit: leave it out of stages "
                    "([outcome, ...])"
                )

    def _refuse_scales(self) -> None:
        reason = "prm_scheme is decouple"
        self._refuse(reason, "consistent_scale", "pos_unconsistent_scale")
        if abs(self.neg_unconsistent_scale) != 0.2:
            self._refuse(reason, "neg_unconsistent_scale")
