"""Upper clip bounds of single rows, set by rules over rollouts.

The first rule that returns a number wins, guided rollouts before `trainer.row_clips`; the default is
`actor.clip_ratio_high`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta

from advantage_processor.settings import StageSettings
from agentevolver.trainer.loss import CLIP_COLUMN, GROUP_COLUMN, GUIDED_COLUMN, guidance_metrics
from agentevolver.trainer.metrics import rollout_flags
from agentevolver.trainer.update import put_columns
from agentevolver.types import RowKey, Trajectory
from experience_manager.settings import ExperienceSettings

logger = logging.getLogger(__name__)

# Training steps after which an ineffective wider clip is reported.
WATCHED_STEPS = 5


class ClipRule(Protocol):
    """One rule, constructed once with the usual upper clip and its options.

    With `groups` (names) and `group(trajectory)` (an index), tokens above their upper clip are reported for each group.
    """

    def __call__(self, trajectory: Trajectory) -> float | None:
        """Return the upper clip for a rollout's rows, or None if the rule does not apply."""


class GuidedClip:
    """The wider clip of guided rollouts whose training prompt has no guidance."""

    def __init__(self, usual: float, section: ExperienceSettings) -> None:
        self._usual, self._section = usual, section

    def __call__(self, trajectory: Trajectory) -> float | None:
        # These rows are trained on another prompt than they were sampled from, and the wider clip is made for that.
        if not (self._section.selective_boosting and trajectory.stripped):
            return None
        return self._section.clip_ratio_high(guided=True, kept=False, otherwise=self._usual)


@dataclass(frozen=True, slots=True)
class ClipColumns:
    """Column values of each rollout, by `trajectory_id`."""

    bounds: dict[str, float]
    boosted: frozenset[str] = frozenset()
    groups: dict[str, int] = field(default_factory=dict)


class RowClips:
    """The clip rules of a run: `exp_manager`, then `trainer.row_clips`. Raises ValueError if one cannot be made."""

    def __init__(self, section: ExperienceSettings, rules: Sequence[StageSettings], usual: float) -> None:
        self.usual = usual
        self._guides = section.guides_training
        self._guided = GuidedClip(usual, section) if self._guides else None
        self._rules: list[ClipRule] = [rule.make("clip", usual) for rule in rules]
        self._grouping: Any = next((rule for rule in self._rules if getattr(rule, "groups", ())), None)

    @property
    def active(self) -> bool:
        return self._guided is not None or bool(self._rules)

    @property
    def columns(self) -> tuple[str, ...]:
        guided, other = (GUIDED_COLUMN,) if self._guides else (), (CLIP_COLUMN,) if self.active else ()
        return (*guided, *other, *((GROUP_COLUMN,) if self.groups else ()))

    @property
    def groups(self) -> tuple[str, ...]:
        return () if self._grouping is None else tuple(self._grouping.groups)

    def of(self, trajectories: Sequence[Trajectory]) -> ClipColumns:
        bounds, boosted = {}, set()
        for one in trajectories:
            name = one.trajectory_id
            said = self._guided(one) if self._guided is not None else None
            if said is not None:
                boosted.add(name)
            else:
                said = next((bound for rule in self._rules if (bound := rule(one)) is not None), self.usual)
            bounds[name] = float(said)
        groups = {one.trajectory_id: self._grouping.group(one) for one in trajectories} if self._grouping else {}
        return ClipColumns(bounds, frozenset(boosted), groups)

    def tell(self, batch: KVBatchMeta, rows: Sequence[int], trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Write the clip, guidance and group columns and return metrics.

        `rows` are the indices of the rows to train on; all others get the usual clip.
        """
        if not self.active:
            return {}
        keys, places = [batch.keys[i] for i in rows], list(rows)
        owners = [RowKey.of(key).trajectory_id for key in keys]
        rollouts = {one.trajectory_id: one for one in trajectories}
        trained = {name: rollouts[name] for name in owners}
        told = self.of(list(trained.values()))
        values = {
            CLIP_COLUMN: [told.bounds[name] for name in owners],
            GUIDED_COLUMN: [float(trained[name].guided) for name in owners],
            GROUP_COLUMN: [float(told.groups.get(name, 0)) for name in owners],
        }
        columns = {}
        for name in self.columns:
            columns[name] = torch.full((len(batch.keys),), self.usual if name == CLIP_COLUMN else 0.0)
            columns[name][places] = torch.tensor(values[name])
        put_columns(batch, columns)
        if not self._guides:
            return {}
        metrics = rollout_flags(trajectories)
        return metrics | (_of_guided(batch, keys, trained, owners, told.boosted) if keys else {})


def _of_guided(
    batch: KVBatchMeta,
    keys: list[str],
    trained: Mapping[str, Trajectory],
    owners: Sequence[str],
    boosted: frozenset[str],
) -> dict[str, float]:
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["advantages", "response_mask"])
    pairs = list(zip(data["advantages"].unbind(), data["response_mask"].unbind(), strict=True))
    tokens = [int(mask.sum()) for _, mask in pairs]
    means = [float((row * mask).sum()) / max(count, 1) for (row, mask), count in zip(pairs, tokens, strict=True)]
    return guidance_metrics(
        [trained[name].guided for name in owners],
        [name in boosted for name in owners],
        [trained[name].score or 0.0 for name in owners],
        means,
        tokens,
    )


class ClipWatch:
    """Warns once if the wider clip made no difference in the first `steps` steps."""

    def __init__(self, steps: int = WATCHED_STEPS) -> None:
        self._left = steps
        self._steps = steps

    def look(self, metrics: Mapping[str, Any]) -> None:
        if self._left <= 0:
            return
        if metrics.get("actor/clip_hi", 0.0) > 0 or metrics.get("actor/clip_freed", 0.0) > 0:
            self._left = 0
            return
        self._left -= 1
        if self._left == 0:
            logger.warning(
                "trainer.row_clips: in %d training steps no token reached its upper clip, so wider clips had no "
                "effect: use more optimiser steps a batch (ppo_mini_batch_size) or a higher learning rate",
                self._steps,
            )
