"""Base class of the configuration's sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Section of the configuration. Unknown keys are refused; values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
