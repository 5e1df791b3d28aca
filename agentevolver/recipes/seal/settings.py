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
    """A success rate so far below the task's best is something forgotten."""
    uncertain: ClassVar[tuple[float, float]] = (0.2, 0.8)
    """Success rates from and to which a task is solved sometimes."""
    enable: bool = Field(False, description="follow what training shows of each task, and diagnose failed rollouts")
    every: int = Field(10, ge=1, description="training steps from one round of new tasks to the next")
    budget_tasks: int = Field(64, ge=1, description="new tasks of a round at most")
    window_steps: int = Field(20, ge=1, description="training steps whose failures count as weaknesses")
    share: float = Field(
        0.3, gt=0, le=1, description="share of an epoch that the rounds' tasks take at most, the newest first"
    )


def settings_of(settings: Settings) -> SealSettings:
    section = settings.recipe("seal")
    assert isinstance(section, SealSettings)
    return section
