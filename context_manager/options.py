"""What can be set of a context: token limits, and the keys that only some templates read.

The names of `ContextOptions` are those of the keys in `actor_rollout_ref.rollout`; a template says in `reads` which of the
optional ones it reads, and the configuration refuses the others. None leaves the choice to the template.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from context_manager.samples import SampleChoice


class ContextFull(Exception):
    """The next prompt and the room for its reply do not fit any more. Ends the episode as `context_full`, it is not a failure."""


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """Token limits of an episode.

    `max_prompt_tokens` bounds the opening messages, `max_response_tokens` everything after them, `max_model_len` prompt and reply
    of one call; `max_new_tokens` is the reserve for one reply, `max_observation_tokens` the cut of one observation.
    """

    max_prompt_tokens: int
    max_response_tokens: int
    max_model_len: int
    max_new_tokens: int
    max_observation_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """The optional keys; docs/context_manager.md has the table of who reads which.

    Every template: `observation_role` replaces the role of what the environment says; `max_samples_per_trajectory` and
    `sample_choice` bound what a trajectory becomes. The others: the prompt length at which a template steps in, the newest turns that
    it leaves alone, the tokens of a summary or note, who writes summaries, whether the policy's own context calls are trained on,
    how thoughts are marked, and what the policy is told about thinking.
    """

    observation_role: Literal["user", "tool"] | None = None
    max_samples_per_trajectory: int | None = None
    sample_choice: SampleChoice | None = None
    context_trigger_tokens: int | None = None
    context_keep_turns: int | None = None
    summary_tokens: int | None = None
    summary_by: Literal["policy", "summariser", "nobody"] | None = None
    train_context_calls: bool | None = None
    think_style: str | None = None
    think_hint: str | None = None
