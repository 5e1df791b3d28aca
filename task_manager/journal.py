"""Journal of a pipeline run: an append-only file of finished parts, from which a killed run resumes."""

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


# Matches the head of a line as `put` writes it, so that the index is built without parsing values.
_HEAD = re.compile(rb'\{"kind":"([^"\\]+)","key":"([^"\\]+)","value":')
# A record's place (offset and length) is packed into one int: a journal may hold hundreds of thousands.
_LENGTH_BITS = 32


class JournalError(RuntimeError):
    """The journal cannot be used; the message names the file and the line."""


class JournalInUse(JournalError):
    pass


def fingerprint(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:24]


class _Lines:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)

    def value(self, place: int) -> Any:
        offset, length = place >> _LENGTH_BITS, place & ((1 << _LENGTH_BITS) - 1)
        try:
            return orjson.loads(os.pread(self._handle, length, offset))["value"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise JournalError(
                f"{self.path}: no valid record at byte {offset} ({error}): move the folder away to start over"
            ) from error


class _Kind(Mapping[str, Any]):
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
    """Places of all records by kind and key; values are read on access. `whole` is the length of all complete lines."""

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
                f"{self._lines.path}:{number}: not a record ({error}): move the folder away to start over"
            ) from error
        return str(kind), str(key)


class PipelineJournal:
    """Records of a folder, written by one process at a time.

    A record is `{"kind", "key", "value"}`. `PipelinePlan` makes the keys: each hashes everything that the value depends
    on.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / "journal.jsonl"
        # A kill may have cut the last line short; only complete lines count.
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
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()
            os.close(self._lock)

    def has(self, kind: str, key: str) -> bool:
        return key in self._index.get(kind, {})

    def get(self, kind: str, key: str) -> Any | None:
        return self._index.get(kind, {}).get(key)

    def put(self, kind: str, key: str, value: Any) -> None:
        """Append a record, which then survives a kill of this process; raises JournalError if the key exists."""
        if self.has(kind, key):
            raise JournalError(f"{self.path}: the {kind} {key} is recorded already")
        line = orjson.dumps({"kind": kind, "key": key, "value": value}) + b"\n"
        written = self._file.write(line)
        if written != len(line):
            # Half a line would hide every record after it.
            self._file.truncate(self._index.whole)
            raise JournalError(f"{self.path}: only {written} of {len(line)} bytes could be written; is the disk full?")
        self._index.add(kind, key, len(line))

    @property
    def records(self) -> Records:
        return self._index

    def items(self, kind: str) -> Iterator[tuple[str, Any]]:
        return iter(self._index.get(kind, {}).items())


def read_journal(folder: Path) -> Records:
    """Read a folder's records without locking it; raises JournalError if there is no journal."""
    path = folder / "journal.jsonl"
    if not path.exists():
        raise JournalError(f"{path}: there is no journal yet; `python -m task_manager explore` creates one")
    return _Index(path)


def _locked(path: Path) -> int:
    # The kernel drops a flock with its process, so a killed run leaves no stale lock.
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(handle, 32).decode("ascii", "replace").strip()
        os.close(handle)
        raise JournalInUse(
            f"{path.parent}: in use by process {owner or '?'}: wait for it, or set another task_manager.store"
        ) from error
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    return handle


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Jobs of a pipeline run, and the journal keys of their parts.

    It is stored in the journal, so that `stats` and `show` need no configuration. The last four fields are hashes.
    """

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
        """Build the plan of a configuration.

        Args:
            seeds: ids of the tasks whose worlds are explored.
            models: model and sampling of each role.
            evaluation: queries that must not be trained on.
            known: ids of existing tasks outside this plan.
        """
        # Each hash covers what its part depends on and nothing else. So an exploration is found again after a change of
        # deduplication, but not after a change of the profile. All environment parameters count, since some change the
        # start states.
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
            "reply_format": settings.reply_format,
            "explorer": models["explorer"],
        }
        if settings.focus:
            # Later parts depend on the exploration's key, and so on this.
            exploring["focus"] = [focus.model_dump() for focus in settings.focus]
        synthesising = {
            **world,
            "profile": profile.instruction(),
            "preference": profile.preference_instruction(),
            "args": settings.synthesis.model_dump(exclude={"min_actions"}),
            "synthesiser": models["synthesiser"],
        }
        if settings.synthesis.min_actions > 1:
            # The default is left out: journals without this key stay valid.
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
        """The run's id: a hash of everything that its tasks depend on except the seeds and their number."""
        return fingerprint({"parts": [self.exploring, self.synthesising, self.verifying, self.deciding]})

    def jobs(self) -> Iterator[tuple[str, int]]:
        """Yield (seed, exploration number): every seed once, then every seed again."""
        return ((seed, number) for number in range(self.first, self.first + self.n) for seed in self.seeds)

    def exploration(self, seed: str, number: int) -> str:
        return fingerprint({"of": self.exploring, "seed": seed, "number": number})

    def synthesis(self, exploration: str) -> str:
        return fingerprint({"of": self.synthesising, "from": exploration})

    def verdict(self, synthesis: str, index: int) -> str:
        return fingerprint({"of": self.verifying, "from": synthesis, "index": index})

    def decision(self, verdict: str) -> str:
        return fingerprint({"of": self.deciding, "from": verdict})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "seeds": tuple(data["seeds"])})
