"""Settings of SEAL's closed loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from agentevolver.config.schema import Settings


class SignalSettings(BaseModel):
    """What a task's history of success rates is taken to say (`signals`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    forgotten: float = Field(
        0.4, gt=0, le=1, description="a success rate so far below the task's best is something forgotten"
    )
    uncertain: tuple[float, float] = Field(
        (0.2, 0.8), description="success rates from and to which a task is solved sometimes"
    )

    @model_validator(mode="after")
    def _band(self) -> Self:
        low, high = self.uncertain
        if not 0 <= low <= high <= 1:
            raise ValueError(f"uncertain = {[low, high]}: write two shares in 0..1, the lower one first")
        return self


class SealSettings(SignalSettings):
    """The section `recipes.seal`: new tasks against what training shows to be weak."""

    enable: bool = Field(False, description="follow what training shows of each task, and diagnose failed rollouts")
    every: int = Field(10, ge=1, description="training steps from one round of new tasks to the next")
    budget_tasks: int = Field(
        64, ge=0, description="new tasks of a round at most; 0: signals are measured, and training goes on as without"
    )
    window_steps: int = Field(20, ge=1, description="training steps whose failures count as weaknesses")
    share: float = Field(
        0.3, gt=0, le=1, description="share of an epoch that the rounds' tasks take at most, the newest first"
    )

    @property
    def makes_tasks(self) -> bool:
        """Whether tasks are made, and mastered ones leave."""
        return self.enable and self.budget_tasks > 0


def settings_of(settings: Settings) -> SealSettings:
    """Return the recipe's section of a run's settings."""
    section = settings.recipe("seal")
    assert isinstance(section, SealSettings)
    return section
