"""Whom a game is played against in self-play: a checkpoint's folder, which the environment is told at create."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentevolver.config.self_play import SelfPlaySettings
from agentevolver.types import Task

CHECKPOINT = "checkpoint"
"""The parameter of create."""
# Of a task's metadata: what its episodes are created with on top of the configuration's.
_PARAMS = "env_params"


def seated(task: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return a task, as data, whose episodes are played against the policy of a folder."""
    metadata = dict(task.get("metadata") or {})
    return {**task, "metadata": {**metadata, _PARAMS: {**metadata.get(_PARAMS, {}), CHECKPOINT: folder}}}


def against_start(task: Task, section: SelfPlaySettings) -> Task:
    """Return a task of a validation as it is played: in self-play's environment against the start."""
    if not section.enable or section.start is None or task.env_type != section.env_type:
        return task
    return Task.from_dict(seated(task.to_dict(), section.start))
