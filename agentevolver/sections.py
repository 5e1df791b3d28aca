"""The sections of the configuration that are ours, as frozen models. `agentevolver.settings` fills and checks them."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from advantage_processor.settings import AttributionSettings
from agentevolver.layers import Device
from agentevolver.llm.settings import LLMSettings, Role
from experience_manager.settings import ExperienceSettings
from task_manager.settings import TaskManagerSettings

OLD_TEMPLATE_NAMES = {"linear": "causal", "linear_think": "reasoning", "context_selfclip": "self_managed"}
CONTEXT_TEMPLATES = ("reasoning", "sliding_window", "self_managed", *sorted(set(OLD_TEMPLATE_NAMES) - {"linear"}), "causal", "linear")
AGENT_FLOWS = ("react", "planner_executor")
# What the built-in teacher can play roles for; of the long variant it can only keep an agent's notes.
TEACHER_ENVIRONMENTS = ("pocket",)
TEACHER_NOTES = (*TEACHER_ENVIRONMENTS, "pocket_long")
_SPEC = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_SHORTENING = ("sliding_window", "self_managed")
# Loss modes in which a sample may have an upper clip of its own (`agentevolver.trainer.loss`).
BOOSTED_LOSS_MODES = ("vanilla", "gspo", "cispo", "trajectory")
# Keys of `rollout` that only some of the built-in templates or flows read, and which.
READ_BY_TEMPLATE: dict[str, tuple[str, ...]] = {
    "context_trigger_tokens": _SHORTENING,
    "context_keep_turns": _SHORTENING,
    "summary_tokens": _SHORTENING,
    "train_context_calls": _SHORTENING,
    "summary_by": ("sliding_window",),
    "think_style": ("reasoning",),
    "think_hint": ("reasoning",),
}
READ_BY_FLOW: dict[str, tuple[str, ...]] = {"max_plans": ("planner_executor",)}


class Section(BaseModel):
    """A section: unknown keys are refused, values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _known(value: str, names: tuple[str, ...]) -> str:
    """Return a name that is known or the place of a class; raises ValueError that says what else to write."""
    if value not in names and re.fullmatch(_SPEC, value) is None:
        near = difflib.get_close_matches(value, names, n=1)
        listed = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
        raise ValueError(f"write {listed}, or package.module:Class" + (f"; did you mean {near[0]!r}?" if near else ""))
    return value


class RolloutSettings(Section):
    """Our keys of `actor_rollout_ref.rollout` (and `multi_turn.max_steps`)."""

    context_template: str = Field(description="how the conversation is kept: a name or package.module:Class")
    agent_flow: str = Field(description="how the agent acts: a name or package.module:Class; a task's metadata may name another")
    max_steps: int = Field(ge=1, description="actions of an episode")
    max_env_len: int = Field(ge=8, description="tokens of one observation")
    max_env_worker: int = Field(ge=1, description="episodes in flight at once, per agent loop worker")
    sparse: bool = Field(description="graded 0 or 1 instead of by the dense score")
    use_qwen3: bool = Field(description="append /no_think to what the environment says")
    max_rollout_tries: int = Field(ge=1, description="attempts at one rollout")
    step_timeout_s: float = Field(gt=0, description="seconds of one model call")
    observation_role: Literal["user", "tool"] | None = Field(description="role of what the environment says; null: its own")
    max_samples_per_trajectory: int | None = Field(ge=1, description="training samples of a trajectory; null: all")
    sample_choice: Literal["spread", "first", "last"] | None = Field(description="which samples are kept; null: spread")
    context_trigger_tokens: int | None = Field(ge=1, description="prompt length at which older turns give way; null: 3/4 of the room")
    context_keep_turns: int | None = Field(ge=1, description="newest turns that stay as they are; null: 3")
    summary_tokens: int | None = Field(ge=1, description="tokens of a summary or note; null: 1/8 of the room")
    summary_by: Literal["policy", "summariser", "nobody"] | None = Field(description="who writes summaries; null: policy")
    train_context_calls: bool | None = Field(description="train on the policy's summaries and context decisions; null: true")
    think_style: Literal["think", "seed_oss", "mistral", "granite"] | None = Field(description="how thoughts are marked; null: think")
    think_hint: str | None = Field(description="added to the last opening message")
    max_plans: int | None = Field(ge=1, description="plans of an episode, the first included; null: 4")

    @field_validator("context_template")
    @classmethod
    def _template(cls, value: str) -> str:
        return _known(value, CONTEXT_TEMPLATES)

    @field_validator("agent_flow")
    @classmethod
    def _flow(cls, value: str) -> str:
        return _known(value, AGENT_FLOWS)


class EnvServiceSettings(Section):
    """The section `env_service`."""

    env_type: str = Field(min_length=1)
    env_url: str = Field(pattern=r"^https?://[^/]+(/.*)?$")
    env_params: dict[str, Any]
    val_env_params: dict[str, Any] = Field(description="replaces keys of env_params in validation")
    timeout_s: float = Field(gt=0)
    unavailable_timeout_s: float = Field(ge=0)
    max_instances: int | None = Field(default=None, ge=1)


class RaySettings(Section):
    """The section `ray`: the cluster that a run starts or joins."""

    address: str | None
    num_cpus: int = Field(ge=1)
    num_gpus: int = Field(ge=1)
    dashboard: bool
    dashboard_port: int = Field(ge=0, le=65535)
    object_store_memory: int | None = Field(default=None, ge=80_000_000)


class TrainerSettings(Section):
    """Our keys of `trainer`."""

    max_failed_rollouts: float = Field(ge=0, le=1)
    max_failed_steps: int = Field(ge=1)
    dump_samples: bool = Field(description="write every training row's tokens and numbers to samples/step_<n>.jsonl")


class DataSettings(Section):
    """Our keys of `data`."""

    train_split: str
    train_filter: dict[str, Any] = Field(description="passed to the environment when it lists its tasks")
    val_splits: list[str] = Field(min_length=1)
    val_filter: dict[str, Any]


class SizeSettings(Section):
    """The numbers of verl's sections that we read or that must fit together."""

    train_batch_size: int = Field(ge=1, description="tasks a step")
    ppo_mini_batch_size: int = Field(ge=1, description="tasks per optimiser step")
    n: int = Field(ge=1, description="rollouts of a task")
    val_n: int = Field(ge=1, description="rollouts of a validation task")
    max_prompt_length: int = Field(ge=1)
    max_response_length: int = Field(ge=1)
    response_length: int = Field(ge=1)
    max_model_len: int = Field(ge=2)
    n_gpus_per_node: int = Field(ge=1)
    nnodes: int = Field(ge=1)
    agent_loop_workers: int = Field(ge=1)


class Settings(Section):
    """The typed view of everything that is ours in the configuration."""

    rollout: RolloutSettings
    env_service: EnvServiceSettings
    ray: RaySettings
    trainer: TrainerSettings
    data: DataSettings
    sizes: SizeSettings
    llm: LLMSettings
    attribution: AttributionSettings
    task_manager: TaskManagerSettings
    exp_manager: ExperienceSettings
    experiment_dir: Path
    device: Device
    device_env: dict[str, str]

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that this run asks."""
        attributing = self.attribution.active and self.attribution.attributor == "llm"
        summarising = self.exp_manager.asks_summariser or self.rollout.summary_by == "summariser"
        own = ((attributing, Role.ATTRIBUTOR), (summarising, Role.SUMMARISER))
        return (*(role for asked, role in own if asked), *self.task_manager.roles)

    @property
    def roles_outside_rollouts(self) -> tuple[Role, ...]:
        """The roles that this run asks also while no policy is served."""
        return (*self.task_manager.making_roles, *((Role.SUMMARISER,) if self.exp_manager.asks_summariser else ()))

    @property
    def usage_ledger(self) -> Path:
        """The file that keeps what the run spent on language models."""
        return self.llm.ledger or self.experiment_dir / "llm_usage.sqlite"
