"""Settings of SeeUPO."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SeeupoSettings(BaseModel):
    """The section `recipes.seeupo`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    order: Literal["reverse"] | None = Field(
        None,
        description="reverse: one update for each turn, the last turn first; null: one update on all tokens",
    )
    clip: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="greatest distance from 1 of a trajectory's running ratio, which multiplies the advantages of the "
        "turns not yet updated",
    )
