"""Validation metrics: exact averages over the rollouts, in place of verl's bootstrap.

`best@k` is the expected maximum of k of the n rollouts, drawn without replacement (Chen et al. 2021, section 2.1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from agentevolver.trainer.monitor.measured import Measured
from agentevolver.types import Trajectory
from agentevolver.utils.statistics import best_at_k, sizes_of_k
from experience_manager.guide import validation_rollouts
from experience_manager.settings import ExperienceSettings

SCORES = ("reward", "success")


@dataclass(frozen=True)
class Validation:
    """The rollouts of one validation, ordered by group id and rollout id."""

    sources: Sequence[str]
    prompts: Sequence[str]
    turns: Sequence[int]
    infos: Mapping[str, Sequence[Any]]
    trajectories: Sequence[Trajectory]

    @classmethod
    def of(
        cls, sources: Sequence[Any], prompts: Sequence[Any], infos: Mapping[str, Sequence[Any]], turns: Sequence[int]
    ) -> Self:
        """Return the validation from verl's lists, which have one entry per rollout.

        All rollouts of a prompt share an id in `prompts`. `infos` has the columns `trajectory`, `masked`, `reward`,
        `success`.
        """
        trajectories = [Trajectory.from_dict(record) for record in infos["trajectory"]]
        order = validation_order(trajectories)
        return cls(
            sources=[str(sources[i]) for i in order],
            prompts=[str(prompts[i]) for i in order],
            turns=[turns[i] for i in order],
            infos={name: [column[i] for i in order] for name, column in infos.items()},
            trajectories=[trajectories[i] for i in order],
        )

    @property
    def records(self) -> Sequence[dict[str, Any]]:
        return self.infos["trajectory"]

    def metrics(self, section: ExperienceSettings, n: int) -> dict[str, float]:
        """Return averages by source, with and without guidance, and numbers of turns. `n` counts rollouts of a
        prompt."""
        masked = [bool(value) for value in self.infos["masked"]]
        values = {name: self.infos[name] for name in SCORES}
        if section.guides:
            wanted = [one.guidance is not None and one.guidance.wanted for one in self.trajectories]
            of_both = validation_rollouts(section, n)
            metrics = validation_metrics_apart(self.sources, self.prompts, values, masked, wanted, of_both)
        else:
            metrics = validation_metrics(self.sources, self.prompts, values, masked, n)
        turns = [turn for turn, failed in zip(self.turns, masked, strict=True) if not failed]
        if turns:
            metrics |= {"val-aux/num_turns/mean": sum(turns) / len(turns), "val-aux/num_turns/max": float(max(turns))}
        return self._measured(section.guides, metrics)

    def _measured(self, apart: bool, metrics: dict[str, float]) -> dict[str, float]:
        """Return the metrics with counts for each source, and without the scores of a source that was not measured."""
        by_source: dict[str, list[Trajectory]] = defaultdict(list)
        for source, one in zip(self.sources, self.trajectories, strict=True):
            guided = apart and one.guidance is not None and one.guidance.wanted
            by_source[f"{source}/guided" if guided else source].append(one)
        total = Measured()
        for source, own in by_source.items():
            measured = Measured.of(own)
            total += measured
            counts = {f"val-aux/{source}/rollouts": float(len(own))} | measured.metrics(f"val-aux/{source}/")
            scores = tuple(f"{core}/{source}/{name}/" for core in ("val-core", "val-aux") for name in SCORES)
            if measured.unmeasured:
                metrics = {name: value for name, value in metrics.items() if not name.startswith(scores)}
            metrics |= counts
        return metrics | {"val-aux/never_acted": float(total.never_began + total.never_acted)}


def validation_order(trajectories: Sequence[Trajectory]) -> list[int]:
    return sorted(range(len(trajectories)), key=lambda i: (trajectories[i].group_id, trajectories[i].rollout_id))


def validation_metrics(
    data_sources: Sequence[str],
    prompts: Sequence[str],
    values: Mapping[str, Sequence[float]],
    masked: Sequence[bool],
    n: int,
) -> dict[str, float]:
    """Return the metrics of one validation, named as AgentEvolver and verl name them.

    Args:
        data_sources, prompts: per rollout, the data source and an id shared by all rollouts of a prompt.
        values: for "reward" and "success", one number per rollout.
        masked: per rollout, whether it failed; failed rollouts are counted and left out of averages.
        n: requested rollouts per prompt.
    """
    metrics: dict[str, float] = {}
    for source in sorted(set(data_sources)):
        rows = [i for i, s in enumerate(data_sources) if s == source]
        metrics[f"val-aux/{source}/failed_rollouts"] = float(sum(masked[i] for i in rows))
        groups: dict[str, list[int]] = defaultdict(list)
        for i in rows:
            if not masked[i]:
                groups[prompts[i]].append(i)
        if not groups:
            continue
        for name, numbers in values.items():
            per_prompt = [[float(numbers[i]) for i in group] for group in groups.values()]
            metrics.update(_of_prompts(source, name, per_prompt, n))
    return metrics


def validation_metrics_apart(
    data_sources: Sequence[str],
    prompts: Sequence[str],
    values: Mapping[str, Sequence[float]],
    masked: Sequence[bool],
    wanted: Sequence[bool],
    n: tuple[int, int],
) -> dict[str, float]:
    """Return the metrics without guidance as `<source>` and with guidance as `<source>/guided`.

    `wanted` says per rollout whether it was meant to be guided. `n` is the requested rollouts without and with
    guidance.
    """
    metrics: dict[str, float] = {}
    for guided, own_n in zip((False, True), n, strict=True):
        rows = [i for i, flag in enumerate(wanted) if bool(flag) is guided]
        if rows:
            names = [f"{data_sources[i]}/guided" if guided else data_sources[i] for i in rows]
            own = {name: [column[i] for i in rows] for name, column in values.items()}
            metrics |= validation_metrics(names, [prompts[i] for i in rows], own, [masked[i] for i in rows], own_n)
    return metrics


def _of_prompts(source: str, name: str, per_prompt: list[list[float]], n: int) -> dict[str, float]:
    core = "val-core" if name == "reward" else "val-aux"
    metrics = {
        f"{core}/{source}/{name}/mean@{n}": float(np.mean([np.mean(scores) for scores in per_prompt])),
        f"val-aux/{source}/{name}/std@{n}": float(np.mean([np.std(scores) for scores in per_prompt])),
    }
    for k in sizes_of_k(n):
        # A prompt with fewer than k rollouts has no best@k.
        best = [best_at_k(scores, k) for scores in per_prompt if len(scores) >= k]
        if best and k > 1:
            prefix = core if k == n else "val-aux"
            metrics[f"{prefix}/{source}/{name}/best@{k}/mean"] = float(np.mean(best))
    return metrics
