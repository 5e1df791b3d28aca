"""Options of the ranking `utility`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class UtilityOptions(BaseModel):
    """The options beside `use: utility` in `exp_manager.ranking`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prior_sd: float = Field(0.2, gt=0, le=1, description="prior standard deviation of a utility")
    rank_weight: float = Field(0.5, ge=0, description="cosine similarity that a utility of 1 is worth in the ranking")
    candidates: int = Field(15, ge=1, description="nearest experiences that are ranked")
    explore: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a step's training groups guided by the candidates with the lowest lower bound, so that "
        "low-ranked experiences are still measured; never in validation",
    )
    certainty: float = Field(
        1.64, ge=0, description="an experience is pruned if its utility is this many standard deviations below 0"
    )
