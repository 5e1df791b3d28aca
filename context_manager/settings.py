"""Settings of context templates (keys of `actor_rollout_ref.rollout`), and the token limits of an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentevolver.utils.names import name_or_spec
from context_manager.samples import SampleChoice

OLD_TEMPLATE_NAMES = {"linear": "causal", "linear_think": "reasoning", "context_selfclip": "self_managed"}
CONTEXT_TEMPLATES = (
    "reasoning",
    "sliding_window",
    "self_managed",
    *sorted(set(OLD_TEMPLATE_NAMES) - {"linear"}),
    "causal",
    "linear",
)


class ContextFull(Exception):
    """The next prompt and a reply do not fit. Ends the episode as `context_full`; this is not a failure."""


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """Token limits of an episode."""

    max_prompt_tokens: int  # of the opening messages
    max_response_tokens: int  # of everything after them
    max_model_len: int  # of one call's prompt and reply
    max_new_tokens: int  # reserved for one reply
    max_observation_tokens: int  # longer observations are cut


class ContextSettings(BaseModel):
    """The context template and its optional keys. Null leaves the value to the template."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    context_template: str = Field("causal", description="how the conversation is kept: a name or package.module:Class")
    observation_role: Literal["user", "tool"] | None = Field(
        None, description="role of the environment's messages; null: as the environment sets it"
    )
    max_samples_per_trajectory: int | None = Field(
        None, ge=1, description="limit on training samples per trajectory; null: none, 8 for a custom agent"
    )
    sample_choice: SampleChoice | None = Field(None, description="which samples are kept; null: spread")
    context_trigger_tokens: int | None = Field(
        None, ge=1, description="prompt length above which older turns go; null: 3/4 of the room"
    )
    context_keep_turns: int | None = Field(None, ge=1, description="newest turns that are kept; null: 3")
    summary_tokens: int | None = Field(None, ge=1, description="limit of a summary or note; null: 1/8 of the room")
    summary_by: Literal["policy", "summariser", "nobody"] | None = Field(
        None, description="who writes summaries; null: policy"
    )
    train_context_calls: bool | None = Field(
        None, description="train on the policy's summaries and context decisions; null: true"
    )
    think_style: Literal["think", "seed_oss", "mistral", "granite"] | None = Field(
        None, description="tags of thoughts; null: think"
    )

    @field_validator("context_template")
    @classmethod
    def _template(cls, value: str) -> str:
        return name_or_spec(value, CONTEXT_TEMPLATES)
