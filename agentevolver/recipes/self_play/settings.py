"""Settings of self-play: games against earlier checkpoints of the policy that is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from agentevolver.config.schema import Settings

FOLDER = "self_play"
CHECKPOINT = "checkpoint"
"""The parameter of create that names the policy behind an environment's player `policy`."""


class SelfPlaySettings(BaseModel):
    """The section `recipes.self_play`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draw: ClassVar[str] = "matched"
    """How a step's opponent is drawn: more often the likelier it is to win by its rating."""
    k: ClassVar[float] = 64.0
    """Elo's K: the most points that a step changes a rating by; a step counts as one game."""

    enable: bool = Field(
        False,
        description="train against frozen checkpoints from a pool, and validate against the first one, `start`",
    )
    env_type: str = Field(
        "textarena",
        description="environment of the game; its episodes get the opponent as the parameter `checkpoint` of create",
    )
    start: str | None = Field(
        None,
        description="first policy of the pool and opponent of validation: a Hugging Face folder; by default "
        "actor_rollout_ref.model.path",
    )
    every: int = Field(
        10,
        ge=1,
        description="training steps between two checkpoints that join the pool, a multiple of trainer.save_freq",
    )
    pool: int = Field(8, ge=1, description="checkpoints in the pool beside the start; a new one replaces the oldest")
    url: str = Field(
        "http://127.0.0.1:8096",
        pattern=r"^http://[^/]+$",
        description="address of the frozen policies' server; the launcher takes the first free port from this one on",
    )


def settings_of(settings: Settings) -> SelfPlaySettings:
    section = settings.recipe("self_play")
    assert isinstance(section, SelfPlaySettings)
    return section
