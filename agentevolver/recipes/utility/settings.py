"""Options of the ranking `utility`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class UtilityOptions(BaseModel):
    """The options beside `use: utility` in `exp_manager.ranking`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prior_sd: float = Field(
        0.2, gt=0, le=1, description="standard deviation of utilities that is expected before any group is seen"
    )
    rank_weight: float = Field(0.5, ge=0, description="cosine that a utility of 1 is worth where guidance is retrieved")
    candidates: int = Field(15, ge=1, description="nearest experiences that are ranked by both")
    explore: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a step's training groups that are guided by the most doubtful of the candidates, so that "
        "what has sunk is still judged; validation never is",
    )
    certainty: float = Field(
        1.64, ge=0, description="standard deviations by which a utility must be below 0 for the experience to be pruned"
    )
