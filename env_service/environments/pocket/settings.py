"""The parameters of a PocketWorld instance, checked on arrival: an unknown key or a wrong value raises ValueError and
names the fix."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from typing import Any

from env_service.environments.pocket.calls import SYNTAXES, Syntax


@dataclass(frozen=True, slots=True)
class PocketParams:
    """- `slack`: calls an episode may spend beyond the reference solution; 0 makes experience count most, 2 or 3 suit a
    real LLM.
    - `syntax`: how calls are written in the prompt and in errors; both syntaxes are always understood.
    - `verbose`: a system message with rules and tools, for a real LLM.
    - `is_open_query`: no task, explore for `explore_steps` calls.
    - `sparse`: whether `evaluate` gives 0 or 1, or the dense share of checks.
    """

    slack: int = 1
    syntax: Syntax = "compact"
    verbose: bool = False
    is_open_query: bool = False
    explore_steps: int = 8
    sparse: bool = True

    def updated(self, params: dict[str, Any] | None) -> PocketParams:
        """Return a copy with `params` on top; raises ValueError."""
        params = params or {}
        known = {f.name: type(getattr(self, f.name)) for f in fields(self)}
        for key, value in params.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                raise ValueError(
                    f"unknown parameter {key!r}"
                    + (f"; did you mean {near[0]!r}?" if near else f"; known are {sorted(known)}")
                )
            if type(value) is not known[key]:
                raise ValueError(f"parameter {key}={value!r} must be of type {known[key].__name__}")
        made = replace(self, **params)
        if made.slack < 0 or made.explore_steps < 1:
            raise ValueError(f"slack={made.slack} must be 0 or more, explore_steps={made.explore_steps} 1 or more")
        if made.syntax not in SYNTAXES:
            raise ValueError(f"parameter syntax={made.syntax!r} must be one of {', '.join(SYNTAXES)}")
        return made
