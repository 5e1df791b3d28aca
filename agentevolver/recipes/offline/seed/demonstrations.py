"""Demonstrations of your own environment: a JSONL file of actions by task, and the conversations they give when played.

A line is `{"task_id": "...", "actions": ["...", ...]}`, one action a turn. Observations are not in the file: the
environment produces them, so that a demonstration looks like a rollout.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from agentevolver.recipes.offline.seed.syntax import SPECIALS
from env_service.base import BaseEnv, Message
from env_service.demonstrations import EpisodeOver, play

_KEYS = {"task_id", "actions"}


class DemonstrationError(ValueError):
    """A file of demonstrations is invalid; the message names the line and the reason."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A line of the file; `place` is its file and line number."""

    task_id: str
    actions: tuple[str, ...]
    place: str


@dataclass(frozen=True, slots=True)
class PlayedTask:
    """A played demonstration: the conversation, which ends with the assistant, and its score in 0..1."""

    messages: list[Message]
    score: float
    place: str


def read_demonstrations(path: Path) -> list[Demonstration]:
    """Return the demonstrations of a JSONL file in order; empty lines are skipped. Raises DemonstrationError."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DemonstrationError(f"{path} cannot be read: {error.strerror or error}") from error
    found = [_of_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise DemonstrationError(f"{path} holds no demonstration")
    return found


def _of_line(line: bytes, place: str) -> Demonstration:
    def refused(why: str) -> DemonstrationError:
        return DemonstrationError(f'{place}: {why}; write {{"task_id": "...", "actions": ["...", ...]}}')

    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise refused(f"no JSON ({error})") from error
    if not isinstance(record, dict) or set(record) != _KEYS:
        raise refused("an object with the keys task_id and actions, and no others, is expected")
    task_id, actions = record["task_id"], record["actions"]
    if not isinstance(task_id, str) or not task_id:
        raise refused("task_id must be a text")
    if not isinstance(actions, list) or not actions or not all(isinstance(one, str) and one for one in actions):
        raise refused("actions must be a list of non-empty texts, at least one")
    return Demonstration(task_id, tuple(actions), place)


def played(world: type[BaseEnv], demonstration: Demonstration, params: Mapping[str, Any] | None = None) -> PlayedTask:
    """Play a demonstration in a fresh instance of `world`, created with `params`.

    Raises DemonstrationError if the world lacks the task, ends before the last action, sends text that a conversation
    cannot hold, or raises an error.
    """
    place, wanted = demonstration.place, dict(params or {})
    try:
        env = world(demonstration.task_id, "demonstration", wanted)
    except Exception as error:
        raise DemonstrationError(f"{place}: the world does not take this task: {described(error)}") from error
    try:
        shown = play(env, wanted, demonstration.actions)
    except EpisodeOver as error:
        raise DemonstrationError(
            f"{place}: the episode is over with action {error.number} of {len(demonstration.actions)}; remove those "
            "behind it"
        ) from error
    except Exception as error:
        raise DemonstrationError(f"{place}: the world failed: {described(error)}") from error
    finally:
        env.close()
    messages = cast(list[Message], shown.messages)
    _check(messages, place)
    return PlayedTask(messages, shown.score, place)


def _check(messages: Sequence[Message], place: str) -> None:
    roles = [message["role"] for message in messages]
    if roles[0] == "assistant" or ("assistant", "assistant") in itertools.pairwise(roles):
        raise DemonstrationError(f"{place}: the world says nothing before an action")
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):
            raise DemonstrationError(f"{place}: a message of {message['role']} is no text: {content!r:.80}")
        special = next((token for token in SPECIALS if token in content), None)
        if special is not None:
            raise DemonstrationError(f"{place}: {special} cannot be part of a message: it begins or ends one")


def described(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
