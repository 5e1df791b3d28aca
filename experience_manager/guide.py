"""Guidance by experience: decides which rollouts are guided, injects the text, and strips it from training prompts.

The guidance stands in the last opening message: `{system}<EXP>{guidance}</EXP>{task}` (paper 2.3). A rollout counts as
guided only if a text was injected. Modes of a group: none (woexp), all, or eta x n of n (mixed), rounded down as in the
paper (eq. 15) or to the nearest as in the original code. Training prompts keep the guidance for all tasks, none, or a
share of them (hybrid).
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentevolver.types import GuidanceUse
from experience_manager.settings import ExperienceSettings, RolloutMode, SampleMode

Message = dict[str, Any]
Rounding = Literal["floor", "round"]


@dataclass(frozen=True, slots=True)
class Guidance:
    """Guidance of a rollout. Without a text, `problem` is "empty" or the error."""

    text: str = ""
    experience_ids: tuple[str, ...] = ()
    keep: bool = False  # whether the training prompt keeps the text
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.text.strip())


@dataclass(frozen=True, slots=True)
class Injection:
    """Opening messages with the guidance (`messages`) and without it (`plain`); `injected` is the inserted text."""

    messages: list[Message]
    plain: list[Message]
    guidance: Guidance = Guidance()
    injected: str = ""

    @property
    def guided(self) -> bool:
        return bool(self.injected)

    @property
    def stripped(self) -> bool:
        """Whether the rollout was guided but its training prompt shows no guidance."""
        return self.guided and not self.guidance.keep

    def use(self, *, wanted: bool = True) -> GuidanceUse:
        """Return the trajectory's record of the guidance; `wanted`: the rollout was meant to be guided."""
        guidance = self.guidance
        if not self.guided:
            return GuidanceUse(wanted, problem=guidance.problem)
        return GuidanceUse(wanted, guidance.text, guidance.experience_ids, guidance.keep, injected=self.injected)


def inject(opening: Sequence[Mapping[str, Any]], guidance: Guidance, template: str) -> Injection:
    """Put guidance before the task; without a text, the opening stays as it is.

    Raises ValueError if the opening does not end with a text.
    """
    plain = [dict(message) for message in opening]
    if not guidance:
        return Injection(plain, plain, guidance)
    if not plain or not isinstance(plain[-1].get("content"), str):
        raise ValueError("guidance stands before the task's text, and the opening does not end with one")
    injected = template.replace("{}", guidance.text, 1)
    # The original messages stay beside the guided ones: a stripped prompt is rendered from them, never cut from a text.
    last = {**plain[-1], "content": injected + plain[-1]["content"]}
    return Injection([*plain[:-1], last], plain, guidance, injected)


def strip(messages: Sequence[Mapping[str, Any]], injected: str) -> list[Message]:
    """Remove the injected text (`GuidanceUse.injected`) from recorded messages."""
    plain = [dict(message) for message in messages]
    for message in plain if injected else ():
        content = message.get("content")
        if message.get("role") == "assistant":
            break
        if isinstance(content, str) and content.startswith(injected):
            message["content"] = content.removeprefix(injected)
    return plain


def guided_count(n: int, mode: RolloutMode, ratio: float, rounding: Rounding) -> int:
    if mode == "mixed":
        # Without the 1e-9, rounding errors such as 0.29 x 100 = 28.999... would lose a rollout.
        return math.floor(ratio * n + 1e-9) if rounding == "floor" else round(ratio * n)
    return n if mode == "all" else 0


def guided_rollouts(group_id: str, n: int, mode: RolloutMode, ratio: float, rounding: Rounding) -> frozenset[int]:
    """Return the guided rollouts (0..n-1) of a group."""
    # Seeded by the group id, so that every process draws the same rollouts.
    seed = int.from_bytes(hashlib.sha256(group_id.encode()).digest()[:8], "big")
    return frozenset(random.Random(seed).sample(range(n), guided_count(n, mode, ratio, rounding)))


def is_guided(settings: ExperienceSettings, group_id: str, rollout_id: int, n: int, *, validation: bool) -> bool:
    """Decide whether a rollout is meant to be guided.

    `n` is the configured number of rollouts. A validation with both kinds has 2 n per task, the guided ones last.
    """
    if validation and settings.val_rollout_mode == "both":
        return rollout_id >= n
    mode: RolloutMode = settings.val_rollout_mode if validation else settings.train_rollout_mode  # type: ignore[assignment]
    return rollout_id in guided_rollouts(group_id, n, mode, settings.rollout_ratio, settings.ratio_rounding)


def validation_rollouts(settings: ExperienceSettings, n: int) -> tuple[int, int]:
    """Return a validation task's number of unguided and of guided rollouts; `n` as in `is_guided`."""
    if settings.val_rollout_mode == "both":
        return n, n
    guided = guided_count(n, settings.val_rollout_mode, settings.rollout_ratio, settings.ratio_rounding)
    return n - guided, guided


def keeps_guidance(mode: SampleMode, keep_ratio: float, place: int) -> bool:
    """Decide whether the task at index `place` of a step keeps its guidance in the training prompt."""
    # Spreads the kept tasks evenly: of any first m tasks of a step, floor(ratio x m) keep it.
    ratio = {"allkeep": 1.0, "alldiscard": 0.0, "hybrid": keep_ratio}[mode]
    return math.floor(ratio * (place + 1) + 1e-9) > math.floor(ratio * place + 1e-9)
