"""What attribution says about one trajectory: labels of every step, or why there are none. JSON-ready, so that it is
kept with the trajectory's record (key `attribution`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class LabelStatus(StrEnum):
    """Whether a trajectory has labels, and if not, whose doing that is."""

    LABELLED = "labelled"
    SKIPPED = "skipped"  # a skip rule said so
    FAILED = "failed"  # the judge gave no usable answer
    OFF = "off"  # nobody was to be asked


@dataclass(frozen=True, slots=True)
class Attribution:
    """The labels of a trajectory: `good` has one entry per step when `status` is LABELLED and is empty otherwise.

    `analyses` are the judge's sentences, one per step; `reason` says why there are no labels; `kind` of a failure is
    one word for the metrics; `calls`, `repairs` and tokens are what it took (0 from the cache), `seconds` from the
    outcome to the labels.
    """

    status: LabelStatus
    good: tuple[bool, ...] = ()
    analyses: tuple[str, ...] = ()
    reason: str = ""
    kind: str = ""
    cached: bool = False
    calls: int = 0
    repairs: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the attribution as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attribution:
        """Read an attribution; raises TypeError for a field that it does not have, ValueError for an unknown status."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items() if name != "status"
        }
        return cls(LabelStatus(data["status"]), **given)

    @classmethod
    def off(cls, reason: str) -> Attribution:
        """Return the attribution of a trajectory that nobody was to be asked about."""
        return cls(LabelStatus.OFF, reason=reason)


def attribution_of(record: Mapping[str, Any]) -> Attribution:
    """Return what a trajectory's record says about its steps."""
    data = record.get("attribution")
    return Attribution.from_dict(data) if data else Attribution.off("nobody was asked")
