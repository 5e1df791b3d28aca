"""Settings of the audit."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class AuditSettings(BaseModel):
    """The section `recipes.audit`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    result: Path | None = Field(
        None,
        description="what `python -m agentevolver.recipes.audit --out FILE` wrote: roles below their bound are off",
    )
