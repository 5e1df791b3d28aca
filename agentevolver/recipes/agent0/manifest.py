"""`coevolve.json`: the state of an experiment's rounds, rewritten atomically after every change.

A stage is `running`, `done` with its counts, metrics and checkpoint, or `skipped` with the reason. Stages that are done
or skipped never run again; a stage that was running during a kill resumes. Paths within the experiment are relative, so
the folder may be moved.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from omegaconf import OmegaConf

from agentevolver.config.changes import changes, decisive, listed
from agentevolver.utils.errors import ConfigError, TrainingFailed
from agentevolver.utils.files import write_json, write_text

NAME, CONFIG = "coevolve.json", "coevolve_config.yaml"
SCHEMA = 1
PROPOSE, POOL, LABEL, SOLVE, EVALUATE = STAGES = ("propose", "pool", "label", "solve", "evaluate")
RUNNING, DONE, SKIPPED = "running", "done", "skipped"


class Manifest:
    """The manifest of an experiment; get one with `open`.

    `content` is `{schema, config_hash, state, best, rounds}`. A round is `{round, proposer, executor, stages}`, with
    the checkpoints at its end. A stage has some of `{state, began, ended, seconds, counts, metrics, start, checkpoint,
    reason}`.
    """

    def __init__(self, experiment: Path, content: dict[str, Any]) -> None:
        self.experiment = experiment
        self.content = content
        self._written = b""

    @classmethod
    def open(cls, experiment: Path, config: Mapping[str, Any]) -> Manifest:
        """Read the manifest of an experiment, or create it.

        Raises ConfigError if a key that affects training has changed since the first start, TrainingFailed if the
        manifest cannot be read or a newer release wrote it.
        """
        path, snapshot, found = experiment / NAME, experiment / CONFIG, config_hash(config)
        if not path.exists():
            write_text(snapshot, OmegaConf.to_yaml(OmegaConf.create(dict(config))))
            manifest = cls(experiment, {"schema": SCHEMA, "config_hash": found, "state": RUNNING, "rounds": []})
            manifest.save()
            return manifest
        try:
            content: dict[str, Any] = orjson.loads(path.read_bytes())
            schema = int(content["schema"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise TrainingFailed(
                f"{path} cannot be read ({error}): give the run a name of its own with trainer.experiment_name=NAME"
            ) from error
        if schema > SCHEMA:
            raise TrainingFailed(
                f"{path} was written by a newer release (schema {schema}, this one reads {SCHEMA}): use that release"
            )
        if content["config_hash"] != found:
            _refuse_changes(snapshot, config)
            content["config_hash"] = found
            write_text(snapshot, OmegaConf.to_yaml(OmegaConf.create(dict(config))))
        content["state"] = RUNNING
        return cls(experiment, content)

    def save(self) -> None:
        text = orjson.dumps(self.content)
        if text != self._written:
            write_json(self.experiment / NAME, self.content, indent=1)
            self._written = text

    def round(self, number: int) -> dict[str, Any]:
        rounds = self.content["rounds"]
        while len(rounds) <= number:
            rounds.append({"round": len(rounds), "stages": {}})
        part: dict[str, Any] = rounds[number]
        return part

    def rounds(self) -> list[dict[str, Any]]:
        return list(self.content["rounds"])

    def stage(self, number: int, name: str) -> dict[str, Any]:
        part: dict[str, Any] = self.round(number)["stages"].get(name, {})
        return part

    def is_over(self, number: int, name: str) -> bool:
        return self.stage(number, name).get("state") in (DONE, SKIPPED)

    def begin(self, number: int, name: str, **facts: Any) -> None:
        """Mark a stage as running; the time of its first start stays."""
        known = self.stage(number, name)
        self._put(number, name, {"state": RUNNING, "began": round(time.time(), 3), "seconds": 0.0, **facts, **known})

    def spend(self, number: int, name: str, seconds: float) -> None:
        known = self.stage(number, name)
        self._put(number, name, {**known, "seconds": round(known.get("seconds", 0.0) + seconds, 3)})

    def finish(self, number: int, name: str, **facts: Any) -> None:
        known = self.stage(number, name)
        self._put(number, name, {**known, "state": DONE, "ended": round(time.time(), 3), **facts})

    def skip(self, number: int, name: str, reason: str, **facts: Any) -> None:
        self._put(number, name, {"state": SKIPPED, "reason": reason, **facts})

    def end_round(self, number: int, proposer: str, executor: str) -> None:
        self.round(number).update(proposer=self.relative(proposer), executor=self.relative(executor))
        self.save()

    @contextmanager
    def timed(self, number: int, name: str) -> Iterator[None]:
        """Add the duration of the block to a stage's seconds, also after an error."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spend(number, name, time.monotonic() - began)

    def relative(self, checkpoint: str) -> str:
        try:
            return str(Path(checkpoint).relative_to(self.experiment))
        except ValueError:
            return checkpoint

    def absolute(self, checkpoint: str) -> str:
        path = self.experiment / checkpoint
        return str(path) if path.exists() else checkpoint

    def _put(self, number: int, name: str, part: dict[str, Any]) -> None:
        self.round(number)["stages"][name] = part
        self.save()


def config_hash(config: Mapping[str, Any]) -> str:
    text = json.dumps(decisive(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _refuse_changes(snapshot: Path, config: Mapping[str, Any]) -> None:
    """Raise ConfigError if the configuration differs from the snapshot. Removing the snapshot skips this check."""
    if not snapshot.exists():
        return
    before: Any = OmegaConf.to_container(OmegaConf.load(snapshot), resolve=False)
    differing = changes(before, config)
    if differing:
        raise ConfigError(
            f"the rounds in {snapshot.parent} were begun with another configuration: {listed(differing)}; give this "
            f"run a name of its own with trainer.experiment_name=NAME, or remove {snapshot} to go on there all the same"
        )
