"""Journal of a pipeline run: finished parts in one append-only file, so that a killed run goes on where it was.

A record is `{"kind", "key", "value"}`. Its key hashes everything that its value follows from and nothing else
(environment, profile, models, prompts, parameters): a changed configuration finds nothing of the old one, an unchanged
one finds all of it, and an exploration, which does not depend on how duplicates are told, is found again when only that
changes. `Plan` makes these keys. A record counts once its line is complete: a line that the kill tore is cut off when
the file is opened. A key is written once; a second value for it is refused. One process at a time may write
(`JournalInUse`). In memory is only where each record stands; its value is read when it is asked for.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from agentevolver.utils.files import cut_torn
from task_manager.profile import EnvProfile
from task_manager.prompts import PROMPTS_VERSION
from task_manager.settings import TaskManagerSettings

Records = Mapping[str, Mapping[str, Any]]
"""Values by kind and key."""

# How `put` writes a line: kind and key are read without the value, which is most of it.
_HEAD = re.compile(rb'\{"kind":"([^"\\]+)","key":"([^"\\]+)","value":')
# A place is one number, since there may be hundreds of thousands: the line's offset, and its length in the lower bits.
_LENGTH_BITS = 32


class JournalError(RuntimeError):
    """A journal that cannot be used; names the file and the line."""


class JournalInUse(JournalError):
    """Another process is writing this journal."""


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return a hash of JSON-ready data, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:24]


class _Lines:
    """A file's lines by their places; it is open as long as somebody may ask."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)

    def value(self, place: int) -> Any:
        """Return the value of the record that stands there; raises JournalError if none does."""
        offset, length = place >> _LENGTH_BITS, place & ((1 << _LENGTH_BITS) - 1)
        try:
            return orjson.loads(os.pread(self._handle, length, offset))["value"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise JournalError(
                f"{self.path}: the record at byte {offset} is none ({error}); move the folder away to start anew"
            ) from error


class _Kind(Mapping[str, Any]):
    """The records of one kind by key, in the order of writing."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self.places: dict[str, int] = {}

    def __getitem__(self, key: str) -> Any:
        return self._lines.value(self.places[key])

    def __contains__(self, key: object) -> bool:
        return key in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.places))

    def __len__(self) -> int:
        return len(self.places)


class _Index(Mapping[str, Mapping[str, Any]]):
    """Where the records of a file stand, by kind and key, and the length of its complete lines in bytes."""

    def __init__(self, path: Path) -> None:
        self._lines = _Lines(path)
        self._kinds: dict[str, _Kind] = {}
        self.whole = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                kind, key = self._named(line, number)
                self.add(kind, key, len(line))

    def __getitem__(self, kind: str) -> Mapping[str, Any]:
        return self._kinds[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, kind: str, key: str, length: int) -> None:
        """Take note of a line at the end of the file."""
        if kind not in self._kinds:
            self._kinds[kind] = _Kind(self._lines)
        self._kinds[kind].places[key] = self.whole << _LENGTH_BITS | length
        self.whole += length

    def _named(self, line: bytes, number: int) -> tuple[str, str]:
        head = _HEAD.match(line)
        if head is not None and line.endswith(b"}\n"):
            return head[1].decode(), head[2].decode()
        try:
            record = orjson.loads(line)
            kind, key, _ = record["kind"], record["key"], record["value"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise JournalError(
                f"{self._lines.path}:{number}: is no record ({error}); move the folder away to start anew"
            ) from error
        return str(kind), str(key)


class Journal:
    """The records of a folder. Use it as a context manager, or call `close`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / "journal.jsonl"
        self._lock = _locked(folder / "lock")
        cut_torn(self.path)
        self._file = self.path.open("ab", buffering=0)
        try:
            self._index = _Index(self.path)
        except JournalError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Bring the file to the disk and let others write."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()
            os.close(self._lock)

    def has(self, kind: str, key: str) -> bool:
        """Return whether there is a record, without reading it."""
        return key in self._index.get(kind, {})

    def get(self, kind: str, key: str) -> Any | None:
        """Return the value of a record, or None if there is none."""
        return self._index.get(kind, {}).get(key)

    def put(self, kind: str, key: str, value: Any) -> None:
        """Append a record. It survives the death of this process from here on."""
        if self.has(kind, key):
            raise JournalError(f"{self.path}: the {kind} {key} is recorded already")
        line = orjson.dumps({"kind": kind, "key": key, "value": value}) + b"\n"
        written = self._file.write(line)
        if written != len(line):
            self._file.truncate(self._index.whole)
            raise JournalError(f"{self.path}: only {written} of {len(line)} bytes could be written; is the disk full?")
        self._index.add(kind, key, len(line))

    @property
    def records(self) -> Records:
        """All records by kind and key, each read when it is asked for."""
        return self._index

    def items(self, kind: str) -> Iterator[tuple[str, Any]]:
        """Return the records of a kind in the order of writing."""
        return iter(self._index.get(kind, {}).items())


def read_journal(folder: Path) -> Records:
    """Return the records of a folder by kind and key without taking its lock; raises JournalError if there are none."""
    path = folder / "journal.jsonl"
    if not path.exists():
        raise JournalError(f"{path}: no such journal; `python -m task_manager explore` begins one")
    return _Index(path)


def _locked(path: Path) -> int:
    """Open and lock a file for this process; the lock goes with the process, however it ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(handle, 32).decode("ascii", "replace").strip()
        os.close(handle)
        raise JournalInUse(
            f"{path.parent}: process {owner or '?'} is working in it; wait for it, or give another store"
        ) from error
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    return handle


@dataclass(frozen=True, slots=True)
class Plan:
    """JSON-ready, so that `stats` and `show` can follow a run without its configuration.
    The four strings are hashes."""

    env_type: str
    profile: str
    seeds: tuple[str, ...]
    n: int
    first: int
    exploring: str
    synthesising: str
    verifying: str
    deciding: str

    @classmethod
    def of(
        cls,
        settings: TaskManagerSettings,
        *,
        env_type: str,
        env_params: Mapping[str, Any],
        profile: EnvProfile,
        seeds: tuple[str, ...],
        models: Mapping[str, str],
        evaluation: tuple[str, ...] = (),
        known: tuple[str, ...] = (),
    ) -> Self:
        """Return the plan of a configuration.

        Args:
            settings: the section `task_manager`.
            env_type: the environment.
            env_params: its parameters.
            profile: what is known of it.
            seeds: ids of the tasks whose worlds are explored.
            models: what tells the model and the sampling of `explorer, synthesiser, verifier, judge` apart from others.
            evaluation: queries that must not be trained on.
            known: ids of tasks that exist beside this plan's.
        """
        # Queries and solutions hold for the start states, which parameters like a step budget do not change, but others
        # may.
        world = {
            "env_type": env_type,
            "params": dict(env_params),
            "version": PROMPTS_VERSION,
            "max_observation_chars": settings.max_observation_chars,
        }
        if settings.action_format is not None:
            world["action_format"] = settings.action_format
        exploring = {
            **world,
            "profile": profile.instruction(),
            "strategy": settings.strategy,
            "args": settings.strategy_args.model_dump(),
            "explore_env_params": settings.explore_env_params,
            "reply_format": settings.reply_format,
            "explorer": models["explorer"],
        }
        if settings.focus:
            # What follows from an exploration is found by its key, so that this is enough for all of it.
            exploring["focus"] = [focus.model_dump() for focus in settings.focus]
        synthesising = {
            **world,
            "profile": profile.instruction(),
            "preference": profile.preference_instruction(settings.synthesis.preference),
            "args": settings.synthesis.model_dump(exclude={"min_actions"}),
            "synthesiser": models["synthesiser"],
        }
        if settings.synthesis.min_actions > 1:
            # Told only then, so that journals of before there was the key go on.
            synthesising["min_actions"] = settings.synthesis.min_actions
        verifying = {
            **world,
            "args": settings.verification.model_dump(),
            "verifier": models["verifier"],
            "judge": models["judge"],
        }
        deciding = {
            "args": settings.deduplication.model_dump(mode="json"),
            "evaluation": sorted(evaluation),
            "known": sorted(known),
            "grader": settings.grader.model_dump(),
        }
        hashes = {
            name: fingerprint(parts)
            for name, parts in (
                ("exploring", exploring),
                ("synthesising", synthesising),
                ("verifying", verifying),
                ("deciding", deciding),
            )
        }
        first = settings.round * settings.n
        return cls(env_type=env_type, profile=profile.fingerprint, seeds=seeds, n=settings.n, first=first, **hashes)

    @property
    def run(self) -> str:
        """The hash of what a task of this plan follows from, seeds and their number aside."""
        return fingerprint({"parts": [self.exploring, self.synthesising, self.verifying, self.deciding]})

    def jobs(self) -> Iterator[tuple[str, int]]:
        """Return (seed, number of the exploration): every seed once, then every seed again."""
        return ((seed, number) for number in range(self.first, self.first + self.n) for seed in self.seeds)

    def exploration(self, seed: str, number: int) -> str:
        """Return the key of an exploration."""
        return fingerprint({"of": self.exploring, "seed": seed, "number": number})

    def synthesis(self, exploration: str) -> str:
        """Return the key of what is synthesised from an exploration."""
        return fingerprint({"of": self.synthesising, "from": exploration})

    def verdict(self, synthesis: str, index: int) -> str:
        """Return the key of the verdict on a proposal."""
        return fingerprint({"of": self.verifying, "from": synthesis, "index": index})

    def decision(self, verdict: str) -> str:
        """Return the key of the decision whether a verified proposal is kept."""
        return fingerprint({"of": self.deciding, "from": verdict})

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        return cls(**{**data, "seeds": tuple(data["seeds"])})
