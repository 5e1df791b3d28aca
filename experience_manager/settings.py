"""Section `exp_manager`: strict and frozen.

AgentEvolver's key names are kept (`val_rollout_mode` to `summary_batch_size`, and `reme.*`). Keys that are null or
missing take the values of `preset` (`PRESETS`; verl's sections: `verl_overrides`). A combination in which a key has no
effect is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from agentevolver.llm.embeddings import EmbeddingSettings
from agentevolver.utils import recipes
from agentevolver.utils.guidance import TEMPLATE as TEMPLATE
from agentevolver.utils.names import load_named
from agentevolver.utils.net import http_url
from agentevolver.utils.recipes import StageSettings

RolloutMode = Literal["woexp", "mixed", "all"]
ValidationMode = Literal["woexp", "mixed", "all", "both"]
SampleMode = Literal["allkeep", "alldiscard", "hybrid"]
Preset = Literal["default", "paper", "original"]

# Values of keys that are null or missing. `default`: ours, chosen by measurement.
PRESETS: dict[Preset, dict[str, Any]] = {
    "default": {
        "init_rollouts": 4,
        "reme.retrieve_top_k": 5,
        "retrieval.rerank": False,
        "retrieval.rewrite": False,
        "pruning.every_steps": 10,
        "kl_to": "reference",
    },
    "paper": {
        "init_rollouts": 4,
        "reme.retrieve_top_k": 5,
        "retrieval.rerank": True,
        "retrieval.rewrite": True,
        "pruning.every_steps": 0,
        "kl_to": "old",
    },
    "original": {
        "init_rollouts": 8,
        "reme.retrieve_top_k": 3,
        "retrieval.rerank": False,
        "retrieval.rewrite": True,
        "pruning.every_steps": 0,
        "kl_to": "reference",
    },
}

_ACTOR = "actor_rollout_ref.actor."
_VERL: dict[Preset, dict[str, Any]] = {
    "default": {},
    # Equations 16 and 17, section 7.1.3: one ratio per trajectory, weight 1/N per trajectory, clip 0.28 on both sides,
    # KL to the sampling policy.
    "paper": {
        _ACTOR + "clip_ratio_low": 0.28,
        _ACTOR + "clip_ratio_high": 0.28,
        _ACTOR + "policy_loss.loss_mode": "trajectory",
        _ACTOR + "loss_agg_mode": "seq-mean-token-mean",
        _ACTOR + "use_kl_loss": True,
        _ACTOR + "kl_loss_coef": 0.001,
    },
    "original": {
        _ACTOR + "clip_ratio_low": 0.2,
        _ACTOR + "clip_ratio_high": 0.28,
        _ACTOR + "policy_loss.loss_mode": "vanilla",
        _ACTOR + "loss_agg_mode": "token-mean",
        _ACTOR + "use_kl_loss": True,
        _ACTOR + "kl_loss_coef": 0.001,
        _ACTOR + "kl_loss_type": "low_var_kl",
    },
}


def verl_overrides(preset: Preset) -> dict[str, Any]:
    """Return a preset's values in verl's sections, as dotted keys; the experiment's own values win."""
    return dict(_VERL[preset])


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RemeSettings(_Section):
    """`reme`: how the pool is used, whichever backend holds it."""

    base_url: Annotated[str, AfterValidator(http_url)] = Field(
        "http://127.0.0.1:8001", description="address for backend http"
    )
    workspace_id: str = Field("default", min_length=1, description="workspace of the store")
    enable_summarizer: bool = Field(False, description="distil experience from finished training rollouts")
    enable_context_generator: bool = Field(False, description="retrieve experience for rollouts")
    retrieve_top_k: int = Field(5, ge=1, description="experiences that guide a task (paper 5, original 3)")
    updated_freq: int = Field(0, ge=0, description="steps between two distillations of rollouts; 0: never")


@dataclass(frozen=True)
class DistillationSettings:
    max_per_kind: int = 2
    """Successes, and failures, per group that are distilled; 0: all of them."""
    # Least score of the judge for an experience to be kept.
    min_score: ClassVar[float] = 0.5
    # Per reply: further ones are mostly paraphrases.
    max_experiences: ClassVar[int] = 3
    # Longer actions and observations lose their middle in prompts.
    max_chars: ClassVar[int] = 8000
    # About 6k tokens; two transcripts in comparison get half each.
    max_transcript_chars: ClassVar[int] = 24000
    # Further groups would wait longer than a step: they are dropped and counted.
    queue_groups: ClassVar[int] = 64
    # Groups distilled at once, during the training step.
    concurrency: ClassVar[int] = 4


class RetrievalSettings(_Section):
    """`retrieval`: how experiences become guidance."""

    match_scope: bool = Field(
        True, description="an experience with a place only guides tasks whose opening or query names the place"
    )
    rerank: bool = Field(False, description="let the summariser choose among `candidates` (paper)")
    # Number of experiences that `rerank` chooses from.
    candidates: ClassVar[int] = 15
    rewrite: bool = Field(False, description="let the summariser write one text for the task (paper, original)")
    item_template: str = Field(
        "{index}. When to use: {when_to_use}\n   Content: {content}",
        description="text of one experience without rewrite; fields index, when_to_use, content, scope",
    )
    separator: str = Field("\n", description="text between experiences")
    max_chars: int = Field(6000, ge=20, description="limit of the guidance; experiences that do not fit are left out")
    # After it, the rollout goes on without guidance.
    timeout_s: ClassVar[float] = 180.0


class PruningSettings(_Section):
    """`pruning`: which experiences are deleted for their results. Pinned ones never are."""

    every_steps: int = Field(10, ge=0, description="steps between two prunings; 0: never (paper, original)")
    min_uses: int = Field(16, ge=1, description="guided rollouts before an experience is judged")
    # Least success rate. 0: a low rate may come from hard tasks, only the lift shows harm.
    min_utility: ClassVar[float] = 0.0
    # Least lift: mean success of guided rollouts minus that of their unguided siblings.
    min_lift: ClassVar[float] = -0.1


class ScoutSettings(_Section):
    """`scout`: held-out tasks that are rolled out unguided before the final validation,
    so that the pool has experience for them."""

    split: str | None = Field(
        None, description="split whose tasks are rolled out unguided to fill the pool; null: none"
    )
    filter: dict[str, Any] = Field(
        default_factory=dict, description="parameters for listing that split; validated tasks are left out"
    )


class ExperienceSettings(_Section):
    """The section `exp_manager`."""

    preset: Preset = Field(
        "default", description="source of values for null or missing keys: ours, the paper's, the original's"
    )
    val_rollout_mode: ValidationMode = Field(
        "woexp",
        description="which validation rollouts are guided; both: every task is rolled out n times without and n times "
        "with guidance",
    )
    train_rollout_mode: RolloutMode = Field("woexp", description="guided rollouts of a group: none, rollout_ratio, all")
    rollout_ratio: float = Field(
        0.0, ge=0, le=1, description="share of a group that is guided with mixed (paper: eta = 0.5)"
    )
    train_sample_mode: SampleMode = Field(
        "alldiscard",
        description="whether training prompts lose the guidance: all of them, none, or all but a share of the step's "
        "tasks",
    )
    train_sample_keepratio: float = Field(
        1.0, ge=0, le=1, description="share of a step's tasks that keep the guidance with hybrid"
    )
    experience_template: str = Field(TEMPLATE, description="text before the task; {} is the guidance")
    selective_boosting: bool = Field(
        True, description="use the upper clip off_cliprange_high for guided samples whose prompt has no guidance"
    )
    off_cliprange_high: float = Field(
        0.6, ge=0, description="upper clip of these samples; others use actor.clip_ratio_high"
    )
    kl_to: Literal["reference", "old"] = Field(
        "reference", description="policy to which the KL loss is taken (paper: old, the sampling policy)"
    )
    init_exp_before_training: bool = Field(False, description="fill the pool from training tasks before the first step")
    init_exp_only: bool = Field(False, description="stop after filling the pool")
    init_rollouts: int = Field(4, ge=1, description="rollouts of each task to fill the pool (paper: N_pc = 4)")
    init_tasks: int | None = Field(None, ge=1, description="training tasks to fill the pool from; null: all")
    summary_batch_size: int = Field(8, ge=1, description="rollouts of a task that are distilled together, at most")
    backend: str = Field(
        "embedded", description="embedded: a store in the run; or a recipe's backend, or package.module:Class"
    )
    store: Path | None = Field(
        None, description="the store's file, may be shared by experiments; null: experience.sqlite of the experiment"
    )
    encoder: EmbeddingSettings = EmbeddingSettings()
    reme: RemeSettings = RemeSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    pruning: PruningSettings = PruningSettings()
    ranking: StageSettings | None = Field(
        None,
        description="what ranks experiences beside similarity, and prunes by that in place of pruning.min_lift: a "
        "recipe's stage, or package.module:Class; with options {use: NAME, option: value}",
    )
    scout: ScoutSettings = ScoutSettings()

    def of_environment(self, env_type: str) -> Self:
        reme = self.reme.model_copy(update={"workspace_id": f"{self.reme.workspace_id}.{env_type}"})
        return self.model_copy(update={"reme": reme})

    @property
    def embedded_text(self) -> Literal["when_to_use", "when_to_use+content"]:
        return "when_to_use+content" if self.preset == "default" else "when_to_use"

    @property
    def success_threshold(self) -> float | None:
        """Score from which a rollout is a success, or None to use the grader's verdict."""
        return 1.0 if self.preset == "original" else None

    @property
    def distillation(self) -> DistillationSettings:
        return DistillationSettings(max_per_kind=2 if self.preset == "default" else 0)

    @property
    def distils_whole_steps(self) -> bool:
        """Whether a step's rollouts are distilled as one group, as in the original code, instead of per task."""
        return self.preset == "original"

    @property
    def ratio_rounding(self) -> Literal["floor", "round"]:
        """Rounding of rollout_ratio x n; the original code rounds to the nearest."""
        return "round" if self.preset == "original" else "floor"

    @property
    def dedup_threshold(self) -> float:
        """Cosine from which two experiences are duplicates; the original code drops identical texts only."""
        return 1.0 if self.preset == "original" else 0.85

    @property
    def guides(self) -> bool:
        return self.reme.enable_context_generator and (self.train_rollout_mode, self.val_rollout_mode) != (
            "woexp",
            "woexp",
        )

    @property
    def distils(self) -> bool:
        updates = self.reme.enable_summarizer and self.reme.updated_freq > 0
        return self.init_exp_before_training or updates or self.scout.split is not None

    @property
    def strips(self) -> bool:
        return self.guides_training and self.train_sample_mode != "allkeep"

    @property
    def guides_training(self) -> bool:
        return self.reme.enable_context_generator and self.train_rollout_mode != "woexp"

    @property
    def asks_summariser(self) -> bool:
        return self.backend == "embedded" and (
            self.distils or (self.guides and (self.retrieval.rerank or self.retrieval.rewrite))
        )

    @property
    def enabled(self) -> bool:
        return self.guides or self.distils

    def clip_ratio_high(self, *, guided: bool, kept: bool, otherwise: float) -> float:
        """Return a sample's upper clip: wider if it was guided and its training prompt shows no guidance (eq. 17)."""
        boosted = self.selective_boosting and guided and not kept
        return self.off_cliprange_high if boosted else otherwise

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("preset") not in (None, *PRESETS):
            return data
        tree = deepcopy(dict(data))
        tree["preset"] = tree.get("preset") or "default"
        for name, value in PRESETS[tree["preset"]].items():
            section, _, key = name.rpartition(".")
            place = tree
            if section:
                own = tree.get(section) or {}
                own = own.model_dump() if isinstance(own, BaseModel) else own
                if not isinstance(own, Mapping):
                    return data
                place = tree[section] = dict(own)
            if place.get(key) is None:
                place[key] = value
        return tree

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.experience_template.count("{}") != 1:
            raise ValueError("experience_template must hold {} once, where the guidance goes")
        try:
            self.retrieval.item_template.format(index=1, when_to_use="", content="", scope="")
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"retrieval.item_template: {error}; its fields are index, when_to_use, content, scope"
            ) from error
        guided = [name for name in ("train_rollout_mode", "val_rollout_mode") if getattr(self, name) != "woexp"]
        if guided and not self.reme.enable_context_generator:
            raise ValueError(f"{guided[0]} = {getattr(self, guided[0])} needs reme.enable_context_generator = true")
        if self.reme.updated_freq and not self.reme.enable_summarizer:
            raise ValueError(f"reme.updated_freq = {self.reme.updated_freq} needs reme.enable_summarizer = true")
        _check_stage("ranking", self.ranking.use if self.ranking is not None else None)
        _check_stage("backend", self.backend if self.backend != "embedded" else None)
        if self.ranking is not None and self.backend != "embedded":
            raise ValueError(f"ranking has no effect under backend = {self.backend}, which ranks itself: remove it")
        if self.scout.split is not None and self.val_rollout_mode == "woexp":
            raise ValueError(
                "scout.split has no effect while val_rollout_mode = woexp: no validation rollout would be guided by "
                "what it finds"
            )
        if self.init_exp_only and not self.init_exp_before_training:
            raise ValueError("init_exp_only = true needs init_exp_before_training = true")
        if self.backend != "embedded" and self.store is not None:
            raise ValueError(f"store has no effect under backend = {self.backend}, which has its own; remove it")
        return self


def _check_stage(kind: str, name: str | None) -> None:
    if name is not None:
        try:
            load_named(name, recipes.stages(kind))
        except ValueError as error:
            raise ValueError(f"{kind}: {error}") from error
