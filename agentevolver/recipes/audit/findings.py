"""What was found of a role, the bounds, and the keys that switch a role off."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from agentevolver.utils import recipes
from agentevolver.utils.errors import ConfigError
from task_manager.settings import GRADER_NAMES, WITHOUT_JUDGE

JUDGE, LABELLER, EXPLORER, DISTILLER = ROLES = ("judge", "labeller", "explorer", "distiller")
JUDGE_AGREES, JUDGE_FALSE, LABELLER_AGREES = 0.85, 0.1, 0.7
"""Least share of verdicts that agree, largest share of failures called successes, least share of labels that agree."""

_CREDIT, _GRADER = "attribution_driven_credit_assignment", "task_manager.grader"
# Keys with which nobody asks the role.
_OFF: dict[str, dict[str, Any]] = {
    JUDGE: {"task_manager.verification.judge": False},
    LABELLER: {f"{_CREDIT}.enable": False, f"{_CREDIT}.adca_grpo.enable_adca_metric": False},
    EXPLORER: {
        "task_manager.n": 0,
        "task_manager.mixture.use_original_tasks": True,
        "task_manager.mixture.synthetic_data_ratio": 0.0,
        "task_manager.curriculum.synthesize_every_epochs": 0,
    },
    DISTILLER: {"exp_manager.init_exp_before_training": False, "exp_manager.reme.enable_summarizer": False},
}
# Graders in place of those that ask the judge, and what stands there if nothing is written.
_GRADERS = {
    "original_grader": ("env", "env"),
    "synthetic_grader": ("state", "auto"),
    "fallback_grader": ("state", "llm"),
    "compare_with": (None, None),
}


@dataclass(slots=True)
class Agreement:
    """Counts of a role's yes or no answers, compared with the true ones. `lost` counts unusable answers by reason."""

    right_yes: int = 0
    yes: int = 0
    right_no: int = 0
    no: int = 0
    lost: dict[str, int] = field(default_factory=dict)

    def add(self, said: bool, truth: bool) -> None:
        if truth:
            self.yes, self.right_yes = self.yes + 1, self.right_yes + said
        else:
            self.no, self.right_no = self.no + 1, self.right_no + (not said)

    def lose(self, reason: str) -> None:
        self.lost[reason] = self.lost.get(reason, 0) + 1

    @property
    def count(self) -> int:
        return self.yes + self.no

    @property
    def share(self) -> float | None:
        """Share of answers that agree with the truth, or None if fewer than half of the questions were answered."""
        is_measured = 0 < self.count >= sum(self.lost.values())
        return (self.right_yes + self.right_no) / self.count if is_measured else None

    @property
    def false_positives(self) -> float | None:
        """Share of true no's that were answered yes, or None if there was no true no."""
        return 1 - self.right_no / self.no if self.no else None


@dataclass(slots=True)
class RoleFinding:
    """Result of measuring one role.

    `off`: why it is below its bound, or "". `missing`: why it was not measured, or "".
    """

    role: str
    lines: list[str] = field(default_factory=list)
    off: str = ""
    missing: str = ""
    seconds: float = 0.0


def judged(found: Agreement) -> RoleFinding:
    """Return the judge's finding. It is below its bound if it agrees too rarely, or calls failures successes."""
    agrees, false = found.share, found.false_positives
    if agrees is None or false is None or not found.yes:
        return RoleFinding(JUDGE, missing=_missing(found, "verdicts on successes and on failures"))
    lines = [
        f"{found.right_yes + found.right_no} of {found.count} verdicts agree ({agrees:.3f}, bound {JUDGE_AGREES:g})",
        f"{found.no - found.right_no} of {found.no} failures called successes ({false:.3f}, bound {JUDGE_FALSE:g})",
        *_lost(found),
    ]
    off = "; ".join([lines[0]] * (agrees < JUDGE_AGREES) + [lines[1]] * (false > JUDGE_FALSE))
    return RoleFinding(JUDGE, lines, off)


def labelled(found: Agreement) -> RoleFinding:
    """Return the labeller's finding. It is below its bound if it agrees too rarely, or no better than one label for all
    steps."""
    agrees = found.share
    if agrees is None:
        return RoleFinding(LABELLER, missing=_missing(found, "labels"))
    constant = max(found.yes, found.no) / found.count
    lines = [
        f"{found.right_yes + found.right_no} of {found.count} labels agree ({agrees:.3f}, bound {LABELLER_AGREES:g}; "
        f"the commoner label for all: {constant:.3f})",
        f"{found.right_yes} of {found.yes} GOOD steps and {found.right_no} of {found.no} BAD steps found",
        *_lost(found),
    ]
    return RoleFinding(LABELLER, lines, lines[0] if agrees < LABELLER_AGREES or agrees <= constant else "")


def _missing(found: Agreement, what: str) -> str:
    return "; ".join([f"there are too few {what}", *_lost(found)])


def _lost(found: Agreement) -> list[str]:
    return [f"{count} without a usable answer: {reason}" for reason, count in sorted(found.lost.items())]


def read_off(path: Path) -> dict[str, str]:
    """Return the roles that an audit's result switches off, with the reasons. Raises ConfigError."""
    try:
        found = {
            ROLES[ROLES.index(role)]: str(one["off"]) for role, one in json.loads(path.read_bytes())["roles"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"recipes.audit.result = {path} is no result of an audit ({type(error).__name__}: {error}): make one with "
            "python -m agentevolver.recipes.audit --out FILE"
        ) from error
    return {role: why for role, why in found.items() if why}


def over(written: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return layers of keys that override the user's own: they switch off each role below its bound."""
    path = recipes.written(written, "recipes.audit.result")
    return [] if path is None else [_tree(off_keys(role, written)) for role in read_off(Path(str(path)))]


def off_keys(role: str, written: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the keys that switch a role off; {} for a labeller that the configuration does not use."""
    if role == LABELLER and recipes.written(written, f"{_CREDIT}.attributor") not in (None, "llm"):
        return {}
    keys = dict(_OFF[role])
    for name, (instead, default) in _GRADERS.items() if role == JUDGE else ():
        grader = recipes.written(written, f"{_GRADER}.{name}") or default
        if grader in ("auto", *GRADER_NAMES) and grader not in WITHOUT_JUDGE:
            keys[f"{_GRADER}.{name}"] = instead
    return keys


def _tree(keys: Mapping[str, Any]) -> Any:
    return OmegaConf.to_container(OmegaConf.from_dotlist([f"{path}={json.dumps(keys[path])}" for path in keys]))


def warnings(settings: Any, config: Any) -> list[str]:
    path = settings.recipe("audit").result
    off = {} if path is None else read_off(path)
    return [f"{role} is off (recipes.audit.result = {path}): {why}; {shown(role)}" for role, why in off.items()]


def shown(role: str) -> str:
    """Return the keys that switch a role off, as arguments of a command line."""
    return " ".join(f"{path}={json.dumps(value).strip(chr(34))}" for path, value in off_keys(role).items())
