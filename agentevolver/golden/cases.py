"""Golden cases: inputs of each role's prompts with predicates on the replies, as YAML.

A predicate says what a good reply holds, never how it is worded. The cases that come along lie beside this module, one
file a role; a file of one's own has the same form. A case that cannot be read raises ConfigError, which names the file,
the case and the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentevolver.errors import ConfigError
from agentevolver.llm.settings import Role

_PREDICATES = ("some", "every", "none", "is_", "between", "count")


class Check(BaseModel):
    """One predicate on the values at a place of a reply.
    Texts are searched with regular expressions, whatever the case.

    `at` is a path of keys and indices with dots between them, `*` for all entries of a list; without it, the reply is
    the one value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        min_length=1, description="what it stands for in the report; shared by cases that look at the same"
    )
    at: str = ""
    some: str | None = Field(None, description="one of the values holds this")
    every: str | None = Field(None, description="there are values, and each holds this")
    none: str | None = Field(None, description="no value holds this")
    is_: Any = Field(None, alias="is", description="there are values, and each is this, or one of these")
    between: tuple[float, float] | None = Field(
        None, description="there are values, and each is a number in this range"
    )
    count: tuple[int, int] | None = Field(None, description="so many values there are")

    @field_validator("some", "every", "none")
    @classmethod
    def _is_pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if all(getattr(self, name) is None for name in _PREDICATES):
            raise ValueError(f"asks nothing: give one of {', '.join(name.rstrip('_') for name in _PREDICATES)}")
        return self

    def holds(self, reply: Any) -> bool:
        """Return whether all that it asks is so."""
        values = values_at(reply, self.at)
        texts = [value if isinstance(value, str) else repr(value) for value in values]
        wanted = self.is_ if isinstance(self.is_, list) else [self.is_]
        return (
            (self.some is None or any(re.search(self.some, text, re.IGNORECASE) for text in texts))
            and (
                self.every is None
                or (bool(texts) and all(re.search(self.every, text, re.IGNORECASE) for text in texts))
            )
            and (self.none is None or not any(re.search(self.none, text, re.IGNORECASE) for text in texts))
            and (self.is_ is None or (bool(values) and all(value in wanted for value in values)))
            and (self.between is None or (bool(values) and all(_is_between(value, self.between) for value in values)))
            and (self.count is None or self.count[0] <= len(values) <= self.count[1])
        )


def values_at(reply: Any, path: str) -> list[Any]:
    """Return the values at a path of keys, indices and `*`; none where it leads nowhere."""
    values = [reply]
    for key in filter(None, path.split(".")):
        values = [inner for value in values for inner in _step(value, key)]
    return values


def _step(value: Any, key: str) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values()) if key == "*" else [value[key]] if key in value else []
    if isinstance(value, list):
        if key == "*":
            return value
        place = int(key) if key.lstrip("-").isdigit() else len(value)
        return [value[place]] if -len(value) <= place < len(value) else []
    return []


def _is_between(value: Any, bounds: tuple[float, float]) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bounds[0] <= value <= bounds[1]


Asked = Literal[
    "explorer/act",
    "synthesiser/tasks",
    "synthesiser/profile",
    "verifier/solve",
    "judge/accept",
    "judge/grade",
    "attributor/steps",
    "summariser/success",
    "summariser/failure",
    "summariser/comparative",
    "summariser/validate",
    "summariser/rerank",
    "summariser/rewrite",
]
Steps = list[tuple[str, str]]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Advice(_Part):
    """An experience that a prompt shows."""

    when_to_use: str
    content: str


class Case(_Part):
    """One input, and what a good reply holds. Which of the inputs are needed depends on what is asked."""

    name: str = Field(min_length=1)
    asked: Asked
    world: str = Field(min_length=1, description="the environment it is from; its action format is used")
    opening: str = Field(
        "", description="what the environment says before the task; `$name` stands for a text of the file's `texts`"
    )
    task: str = ""
    steps: Steps = Field(default_factory=list, description="[action, observation] of the transcript")
    worse: Steps = Field(default_factory=list, description="of the attempt that did worse")
    attempt: Steps | None = Field(None, description="of the verifier's own solution")
    reference: list[str] | None = None
    success: bool = True
    experiences: list[Advice] = Field(default_factory=list)
    tools: str = ""
    tried: list[str] = Field(default_factory=list)
    existing: list[str] = Field(default_factory=list)
    phase: Literal["breadth", "depth"] = "breadth"
    steps_left: int = Field(8, ge=1)
    count: int = Field(4, ge=1)
    checks: list[Check] = Field(min_length=1)

    @property
    def role(self) -> Role:
        """Who is asked."""
        return Role(self.asked.partition("/")[0])


def shipped_cases() -> list[Case]:
    """Return the cases that come along."""
    files = sorted((resources.files("agentevolver.golden") / "cases").iterdir(), key=lambda file: file.name)
    return _distinct(case for file in files if file.name.endswith(".yaml") for case in _read(file, file.name))


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file of one's own; raises ConfigError."""
    return _distinct(_read(path, str(path)))


def _read(file: Traversable | Path, name: str) -> Iterable[Case]:
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{name} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("cases"), list) or set(tree) - {"cases", "texts"}:
        raise ConfigError(f"{name}: golden cases are a mapping with a list `cases` and, if wanted, a mapping `texts`")
    texts = tree.get("texts") or {}
    for number, data in enumerate(tree["cases"]):
        place = data.get("name", number) if isinstance(data, dict) else number
        try:
            yield Case.model_validate(_filled(data, texts))
        except KeyError as error:
            raise ConfigError(f"{name}: case {place}: there is no text {error} in `texts`") from error
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(
                f"{name}: case {place}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
            ) from error


def _filled(data: Any, texts: dict[str, str]) -> Any:
    if not isinstance(data, dict):
        return data
    return {
        key: texts[value[1:]] if isinstance(value, str) and value.startswith("$") else value
        for key, value in data.items()
    }


def _distinct(cases: Iterable[Case]) -> list[Case]:
    found: dict[str, Case] = {}
    for case in cases:
        if case.name in found:
            raise ConfigError(f"two golden cases are called {case.name!r}")
        found[case.name] = case
    return list(found.values())
