"""Settings of self-play: games against earlier checkpoints of the policy that is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from agentevolver.config.schema import Settings

CHECKPOINT = "checkpoint"
"""The parameter of create by which an environment is told whom its player `policy` is."""


class SelfPlaySettings(BaseModel):
    """The section `recipes.self_play`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draw: ClassVar[str] = "matched"
    """The opponent of a step: the likelier it is to win by its rating, the more often."""
    k: ClassVar[float] = 64.0
    """Rating points that a step moves a rating by at most (Elo's K, a step being one game)."""

    enable: bool = Field(
        False,
        description="the player `policy` of a game is a frozen checkpoint: of the pool in training, the start in "
        "validation",
    )
    env_type: str = Field(
        "textarena",
        description="the environment whose episodes are told the checkpoint, as the parameter `checkpoint` of create",
    )
    start: str | None = Field(
        None,
        description="the policy that the pool begins with and validation is played against: a Hugging Face folder; by "
        "default actor_rollout_ref.model.path",
    )
    every: int = Field(
        10,
        ge=1,
        description="training steps after which the policy's checkpoint joins the pool, a multiple of "
        "trainer.save_freq",
    )
    pool: int = Field(
        8, ge=1, description="checkpoints of the pool beside the start; the oldest makes room for a new one"
    )
    url: str = Field(
        "http://127.0.0.1:8096",
        pattern=r"^http://[^/]+$",
        description="where the launcher starts the frozen policies' server, on the first free port from there on",
    )


def settings_of(settings: Settings) -> SelfPlaySettings:
    section = settings.recipe("self_play")
    assert isinstance(section, SelfPlaySettings)
    return section
