"""Tables of experiments: conditions x seeds from one yaml, and their launches.

A condition is an experiment's yaml with overrides. It is trained with each seed, and with a section `evaluation` then
evaluated by a launch that only validates. Results: `table_results`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentevolver.config.layers import quoted
from agentevolver.trainer.checkpoints import only_starts_over, whole_checkpoints
from agentevolver.utils.errors import LaunchError, UsageError
from agentevolver.utils.experiments import ROOT

FINISHED = "finished"
POOL = "experience.sqlite"
Overrides = dict[str, Any]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Overriding(_Section):
    experiment: Path | None = None
    """None: the table's yaml."""
    overrides: Overrides = Field(default_factory=dict)


class Condition(_Overriding):
    train: bool = True
    """False: evaluate the untrained model, with the condition's overrides."""
    evaluation: Overrides = Field(default_factory=dict)
    """Overrides of the evaluation, which ignores `overrides`."""
    seeds: list[int] | None = Field(None, min_length=1)
    """None: the table's seeds."""


class Evaluating(_Overriding):
    """Evaluation of a trained condition, with the run's own experience pool if it has one."""

    with_experience: _Overriding | None = None
    """For runs with a pool: replaces `experiment` and extends `overrides`."""


class Table(_Section):
    """Yaml of a table. Paths of experiments are relative to the yaml's folder."""

    project: str = Field(min_length=1, pattern=r"[\w.-]+")
    experiment: Path | None = None
    seeds: list[int] = Field(min_length=1)
    seed_keys: list[str] = ["data.seed", "actor_rollout_ref.rollout.seed"]
    train: Overrides = Field(default_factory=dict)
    """Overrides of every training."""
    conditions: dict[str, Condition] = Field(min_length=1)
    evaluation: Evaluating | None = None
    baseline: str | None = None
    """null: the first trained condition."""
    root: Path = ROOT
    out: Path | None = None
    """Path of the csv and markdown files without suffix; null: in the project's folder."""

    @field_validator("conditions")
    @classmethod
    def _can_be_told_apart(cls, value: dict[str, Condition]) -> dict[str, Condition]:
        for name in value:
            if not name.replace("_", "a").isalnum():
                raise ValueError(f"{name!r}: a condition's name may hold only letters, digits and _")
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.baseline is not None and self.baseline not in self.conditions:
            raise ValueError(f"baseline {self.baseline!r} is not one of the conditions {', '.join(self.conditions)}")
        for name, condition in self.conditions.items():
            if condition.experiment is None and self.experiment is None:
                raise ValueError(f"condition {name!r} has no experiment, and the table has no default: set one of them")
            if not condition.train and self.evaluation is None:
                raise ValueError(
                    f"condition {name!r} is neither trained nor evaluated: set train, or add a section evaluation"
                )
            if condition.evaluation and self.evaluation is None:
                raise ValueError(
                    f"condition {name!r} has overrides of its evaluation, but the table has no section evaluation"
                )
        return self

    def against(self, baseline: str) -> Self:
        """Return the table with another baseline. Raises UsageError if it is no condition."""
        if baseline not in self.conditions:
            raise UsageError(f"there is no condition {baseline!r} in the table: {', '.join(self.conditions)}")
        return self.model_copy(update={"baseline": baseline})

    @property
    def compared_with(self) -> str:
        return self.baseline or next(
            (name for name, one in self.conditions.items() if one.train), next(iter(self.conditions))
        )


def read_table(path: Path) -> Table:
    """Read a table's yaml. Raises UsageError."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is no yaml: {' '.join(str(error).split())}") from error
    try:
        table = Table.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from error
    parts: list[Any] = [table, *table.conditions.values(), table.evaluation]
    parts.append(table.evaluation.with_experience if table.evaluation is not None else None)
    for named in (part.experiment for part in parts if part is not None and part.experiment is not None):
        if not (path.parent / named).is_file():
            raise UsageError(f"{path}: experiment {named} is not there ({path.parent / named})")
    return table


@dataclass(frozen=True, slots=True)
class TableLaunch:
    """One start of the launcher. `copy` is an experience pool to copy into its folder first."""

    name: str
    conf: Path
    overrides: tuple[str, ...]
    copy: Path | None = None

    def arguments(self) -> list[str]:
        return ["--conf", str(self.conf), *self.overrides]


@dataclass(frozen=True, slots=True)
class Cell:
    condition: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.condition}-{self.seed}"


class TablePlan:
    """Launches of a table.

    Args:
        folder: the yaml's folder.
        seeds, conditions: those to launch; None: all.
        train: further overrides of every training.
        every: further overrides of every launch.

    Raises:
        UsageError: a condition is not in the table.
    """

    def __init__(
        self,
        table: Table,
        folder: Path,
        *,
        seeds: Sequence[int] | None = None,
        conditions: Sequence[str] | None = None,
        train: Sequence[str] = (),
        every: Sequence[str] = (),
    ) -> None:
        unknown = sorted(set(conditions or ()) - set(table.conditions))
        if unknown:
            raise UsageError(f"there is no condition {unknown[0]!r} in the table: {', '.join(table.conditions)}")
        self.table = table
        self.folder = table.root / table.project
        self.conditions = [name for name in table.conditions if conditions is None or name in conditions]
        self._seeds = {name: list(seeds or table.conditions[name].seeds or table.seeds) for name in self.conditions}
        self._yaml_folder, self._train, self._every = folder, tuple(train), tuple(every)

    def cells(self) -> list[Cell]:
        # Seed by seed: an unfinished table then compares all conditions on the seeds it has.
        every = dict.fromkeys(seed for seeds in self._seeds.values() for seed in seeds)
        return [Cell(name, seed) for seed in every for name in self.conditions if seed in self._seeds[name]]

    def training(self, cell: Cell) -> TableLaunch | None:
        """Return a cell's training, or None if the condition is not trained."""
        condition = self.table.conditions[cell.condition]
        if not condition.train:
            return None
        own = (*_items(self.table.train), *_items(condition.overrides), *self._train)
        # The launcher refuses to start over after steps were trained, unless it is told to.
        if only_starts_over(self.folder / cell.name):
            own += ("trainer.resume_mode=disable",)
        return self._launch(cell.name, condition.experiment, cell.seed, own)

    def evaluation(self, cell: Cell) -> TableLaunch | None:
        """Return a cell's evaluation, or None if the table has none.

        Raises:
            LaunchError: the training left no complete checkpoint.
        """
        section, condition = self.table.evaluation, self.table.conditions[cell.condition]
        if section is None:
            return None
        own, conf, pool = [*_items(section.overrides)], section.experiment or condition.experiment, None
        if condition.train:
            whole = whole_checkpoints(self.folder / cell.name / "checkpoints")
            if not whole:
                raise LaunchError(f"{self.folder / cell.name} has no whole checkpoint to evaluate")
            checkpoint = Path(os.path.abspath(whole[-1].folder))
            own += ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={quoted(str(checkpoint))}"]
            found = self.folder / cell.name / POOL
            if section.with_experience is not None and found.exists():
                pool, conf = found, section.with_experience.experiment or conf
                own += _items(section.with_experience.overrides)
        else:
            own += _items(condition.overrides)
        own += _items(condition.evaluation)
        return self._launch(f"{cell.name}-eval", conf, cell.seed, own, pool)

    def _launch(
        self, name: str, conf: Path | None, seed: int, own: Sequence[str], copy: Path | None = None
    ) -> TableLaunch:
        chosen = conf or self.table.experiment
        assert chosen is not None
        root = [] if self.table.root == ROOT else [f"experiment.root={quoted(str(self.table.root))}"]
        named = [*root, f"trainer.project_name={self.table.project}", f"trainer.experiment_name={name}"]
        # The last override of a key wins: a condition may set what is named here, the command line everything.
        seeds = [f"{key}={seed}" for key in self.table.seed_keys]
        conf_path = Path(os.path.normpath(self._yaml_folder / chosen))
        return TableLaunch(name, conf_path, (*named, *seeds, *own, *self._every), copy)

    def finished(self, name: str) -> Path:
        """Return the file that marks a launch as finished."""
        return self.folder / name / FINISHED


def _items(overrides: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_text(value)}" for key, value in overrides.items()]


def _text(value: Any) -> str:
    """Return a value in the syntax of OmegaConf's command line."""
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(one)}" for key, one in value.items()) + "}"
    return str(value)
