"""Tasks for MCP servers: JSON lines of `{"id", "question", "checks": [...]}`, optional `split` and `setup`.

`setup` calls tools before the agent's first turn. A check is `exact` (`answer`), `regex` (`pattern`), `json_path` (the
value at `path` of a state file or of a tool's last result equals `equals`) or `judge` (`rubric`). A wrong line raises
TaskFileError naming file and line.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from env_service.environments.mcp_tools.config import inner_file

_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(-?\d{1,9})\]")


class PathError(LookupError):
    """The value has nothing at this path."""


def parse_path(path: str) -> list[str | int]:
    """Parse a JSON path into keys and indices. The ValueError quotes the part that cannot be read."""
    if not path.startswith("$"):
        raise ValueError(f"JSON path {path!r} must begin with $")
    steps: list[str | int] = []
    position = 1
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise ValueError(
                f"JSON path {path!r} cannot be read from {path[position:]!r} on; use .name, ['name'] or [3]"
            )
        name = next((group for group in match.groups()[:3] if group is not None), None)
        steps.append(name if name is not None else int(match[4]))
        position = match.end()
    return steps


def find(value: Any, path: str) -> Any:
    """Return the value at `path`; raises PathError."""
    for step in parse_path(path):
        if isinstance(step, str):
            known = isinstance(value, dict) and step in value
        else:
            known = isinstance(value, list) and -len(value) <= step < len(value)
        if not known:
            raise PathError(f"nothing at {step!r} of {path}")
        value = value[step]
    return value


SPLITS = ("train", "dev", "test")


class McpTaskFileError(RuntimeError):
    pass


def _valid_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


def _valid_path(path: str) -> str:
    parse_path(path)
    return path


def plain(text: str) -> str:
    """Return the text as `exact` compares it."""
    return " ".join(text.casefold().split()).strip(" .`\"'")


def _comparable(answer: str | list[str]) -> str | list[str]:
    if not answer or not all(map(plain, [answer] if isinstance(answer, str) else answer)):
        raise ValueError(f"{answer!r} has nothing to compare with")
    return answer


def _without_nan(value: Any) -> Any:
    json.dumps(value, allow_nan=False)
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Exact(_Strict):
    """The final answer equals the text, or one of the texts."""

    type: Literal["exact"]
    answer: Annotated[str | list[str], AfterValidator(_comparable)]


class Regex(_Strict):
    """The final answer matches somewhere; case counts unless the pattern says (?i)."""

    type: Literal["regex"]
    pattern: Annotated[str, AfterValidator(_valid_pattern)]


class JsonPath(_Strict):
    """A value in a state file (`file`) or in a tool's last result (`tool`) equals the expected one."""

    type: Literal["json_path"]
    path: Annotated[str, AfterValidator(_valid_path)] = "$"
    equals: Annotated[Any, AfterValidator(_without_nan)] = None
    file: Annotated[str, AfterValidator(inner_file)] | None = None
    tool: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> JsonPath:
        if (self.file is None) == (self.tool is None):
            raise ValueError("give either `file` or `tool`")
        return self


class Judge(_Strict):
    """An LLM judge answers whether the rubric is met."""

    type: Literal["judge"]
    rubric: str = Field(min_length=1)


Check = Annotated[Exact | Regex | JsonPath | Judge, Field(discriminator="type")]


class SetupCall(_Strict):
    """A tool call before the first turn."""

    tool: str
    arguments: dict[str, Any] = {}


class McpTask(_Strict):
    """One request; all its checks must hold."""

    id: str = Field(min_length=1)
    question: str = Field(min_length=1)
    checks: list[Check] = Field(min_length=1)
    split: Literal["train", "dev", "test"] = "train"
    setup: list[SetupCall] = []


def _read(path: Path, *, judge: bool) -> list[McpTask]:
    tasks = []
    # Bytes: `str.splitlines` also breaks at characters that JSON allows in texts, such as U+2028.
    for number, line in enumerate(path.read_bytes().removeprefix(BOM_UTF8).splitlines(), 1):
        if not line.strip():
            continue
        try:
            task = McpTask.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            raise McpTaskFileError(
                f"{path}, line {number}, at `{'.'.join(map(str, first['loc']))}`: {first['msg']}"
            ) from error
        if not judge and any(isinstance(check, Judge) for check in task.checks):
            raise McpTaskFileError(
                f"{path}, line {number}: task {task.id!r} needs a judge; set ENV_MCP_JUDGE_URL and "
                "ENV_MCP_JUDGE_MODEL, or leave it out"
            )
        tasks.append(task)
    return tasks


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise McpTaskFileError(f"cannot read the task file {path}: {error.strerror}") from error
    return status.st_mtime_ns, status.st_size


def load_tasks(paths: tuple[Path, ...], *, judge: bool) -> dict[str, McpTask]:
    """Return all tasks by id, in file order; a changed file is read again. `judge`: whether the service has one."""
    return _loaded(paths, tuple(_stamp(path) for path in paths), judge)


@lru_cache(maxsize=4)
def _loaded(paths: tuple[Path, ...], stamps: tuple[tuple[int, int], ...], judge: bool) -> dict[str, McpTask]:
    tasks: dict[str, McpTask] = {}
    for path in paths:
        for task in _read(path, judge=judge):
            if task.id in tasks:
                raise McpTaskFileError(f"{path}: task id {task.id!r} occurs twice")
            tasks[task.id] = task
    return tasks
