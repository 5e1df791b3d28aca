"""Guidance by experience: decides who is guided, injects the text before the task, strips it from the training prompt.

The guidance stands in the last opening message: `{system}<EXP>{guidance}</EXP>{task}` (paper 2.3). The original
messages are kept beside the guided ones, so a stripped training prompt is rendered from them and never cut out of a
text. A rollout is guided if, and only if, a text was put into it.

Guided rollouts of a group: none (woexp), all, or eta x n of n (mixed), rounded down as in the paper (eq. 15) or to the
nearest as in the original; drawn by the group id, so that every process decides alike. Tasks that keep the guidance in
their training prompt: all, none, or a share of them (hybrid).
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
    """Guidance of a rollout: a text, the ids of the experiences in it, and whether its training prompt keeps it.

    Without a text, `problem` says why: "empty" if nothing fits the task, else the error.
    """

    text: str = ""
    experience_ids: tuple[str, ...] = ()
    keep: bool = False
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.text.strip())


@dataclass(frozen=True, slots=True)
class Injection:
    """Opening messages with guidance (`messages`, what the policy sees) and without (`plain`); `injected` was added."""

    messages: list[Message]
    plain: list[Message]
    guidance: Guidance = Guidance()
    injected: str = ""

    @property
    def guided(self) -> bool:
        return bool(self.injected)

    @property
    def stripped(self) -> bool:
        """Whether the sample was guided and its training prompt does not say so."""
        return self.guided and not self.guidance.keep

    def use(self, *, wanted: bool = True) -> GuidanceUse:
        """Return the trajectory's record of it; `wanted`: the rollout was to be guided."""
        guidance = self.guidance
        if not self.guided:
            return GuidanceUse(wanted, problem=guidance.problem)
        return GuidanceUse(wanted, guidance.text, guidance.experience_ids, guidance.keep, injected=self.injected)


def inject(opening: Sequence[Mapping[str, Any]], guidance: Guidance, template: str) -> Injection:
    """Put guidance before the task; without a text, the opening stays as it is.

    Args:
        opening: messages up to the first action; the last holds the task.
        template: with `{}` where the text goes.

    Raises:
        ValueError: the opening does not end with a text.
    """
    plain = [dict(message) for message in opening]
    if not guidance:
        return Injection(plain, plain, guidance)
    if not plain or not isinstance(plain[-1].get("content"), str):
        raise ValueError("guidance stands before the task's text, and the opening does not end with one")
    injected = template.replace("{}", guidance.text, 1)
    last = {**plain[-1], "content": injected + plain[-1]["content"]}
    return Injection([*plain[:-1], last], plain, guidance, injected)


def strip(messages: Sequence[Mapping[str, Any]], injected: str) -> list[Message]:
    """Return recorded messages without the text that was put into them (`GuidanceUse.injected`)."""
    plain = [dict(message) for message in messages]
    for message in plain if injected else ():
        content = message.get("content")
        if message["role"] == "assistant":
            break
        if isinstance(content, str) and content.startswith(injected):
            message["content"] = content.removeprefix(injected)
    return plain


def guided_count(n: int, mode: RolloutMode, ratio: float, rounding: Rounding) -> int:
    """Return how many of n rollouts are guided."""
    if mode == "mixed":
        # 0.7 x 10 is 7 and not 6.999..: a hair above a whole number belongs to it.
        return math.floor(ratio * n + 1e-9) if rounding == "floor" else round(ratio * n)
    return n if mode == "all" else 0


def guided_rollouts(group_id: str, n: int, mode: RolloutMode, ratio: float, rounding: Rounding) -> frozenset[int]:
    """Return the numbers, 0..n-1, of a group's guided rollouts."""
    seed = int.from_bytes(hashlib.sha256(group_id.encode()).digest()[:8], "big")
    return frozenset(random.Random(seed).sample(range(n), guided_count(n, mode, ratio, rounding)))


def is_guided(settings: ExperienceSettings, group_id: str, rollout_id: int, n: int, *, validation: bool) -> bool:
    """Decide whether a rollout is to be guided.

    `n` is the configured number of rollouts; if validation wants both kinds, a task has 2 n, the guided ones last.
    """
    if validation and settings.val_rollout_mode == "both":
        return rollout_id >= n
    mode: RolloutMode = settings.val_rollout_mode if validation else settings.train_rollout_mode  # type: ignore[assignment]
    return rollout_id in guided_rollouts(group_id, n, mode, settings.rollout_ratio, settings.ratio_rounding)


def validation_rollouts(settings: ExperienceSettings, n: int) -> tuple[int, int]:
    """Return the numbers of a validation task's rollouts without and with guidance; `n` as in `is_guided`."""
    if settings.val_rollout_mode == "both":
        return n, n
    guided = guided_count(n, settings.val_rollout_mode, settings.rollout_ratio, settings.ratio_rounding)
    return n - guided, guided


def keeps_guidance(mode: SampleMode, keep_ratio: float, place: int) -> bool:
    """Decide whether the task in a step's place 0, 1, ... keeps its guidance: of any first m, floor(ratio x m) do."""
    ratio = {"allkeep": 1.0, "alldiscard": 0.0, "hybrid": keep_ratio}[mode]
    return math.floor(ratio * (place + 1) + 1e-9) > math.floor(ratio * place + 1e-9)
