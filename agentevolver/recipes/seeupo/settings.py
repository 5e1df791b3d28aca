"""Settings of SeeUPO."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SeeupoSettings(BaseModel):
    """The section `recipes.seeupo`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    order: Literal["reverse"] | None = Field(
        None,
        description="update one turn of each trajectory after another, the last one first (reverse); null: all tokens "
        "of a trajectory at once",
    )
    clip: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="how far from 1 the running ratio of a trajectory's updated turns may be; the advantages of its "
        "other turns are multiplied by that ratio",
    )
