"""Settings of SEAL's closed loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from agentevolver.config.schema import Settings


class SealSettings(BaseModel):
    """The section `recipes.seal`: new tasks against the policy's weaknesses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    forgotten: ClassVar[float] = 0.4
    """A task is forgotten if its success rate is this far below its best."""
    uncertain: ClassVar[tuple[float, float]] = (0.2, 0.8)
    """Range of success rates in which a task is uncertain."""
    enable: bool = Field(False, description="diagnose failed rollouts, and make new tasks against the weaknesses found")
    every: int = Field(10, ge=1, description="training steps between two rounds of new tasks")
    budget_tasks: int = Field(64, ge=1, description="new tasks of a round, at most")
    window_steps: int = Field(20, ge=1, description="training steps whose failures count as weaknesses")
    share: float = Field(
        0.3, gt=0, le=1, description="greatest share of the rounds' tasks in an epoch; the newest come first"
    )


def settings_of(settings: Settings) -> SealSettings:
    section = settings.recipe("seal")
    assert isinstance(section, SealSettings)
    return section
