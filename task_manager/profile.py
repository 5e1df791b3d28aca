"""Environment profiles: user, entities, operations and wanted tasks. AgentEvolver's JSON format plus `rubrics`."""

from __future__ import annotations

import hashlib
import json
import logging
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from env_service.registry import known_environments

logger = logging.getLogger(__name__)

_DIFFICULTY = {
    1: "easy: one entity, one or two calls, nothing depends on anything else",
    2: "medium: several calls that do not depend on each other",
    3: "hard: calls that need what earlier calls said, with conditions or several objects to be found first",
}


class ProfileError(ValueError):
    """An invalid profile; the message names the file and the field."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Operation(_Part):
    """An operation on an entity."""

    name: str = Field(min_length=1)
    description: str


class Entity(_Part):
    name: str = Field(min_length=1)
    description: str
    attrs: dict[str, str]
    opts: list[Operation]


class TaskPreference(_Part):
    """Wanted tasks: mean number of entities and of operations, and difficulty."""

    num_entities: int = Field(ge=1)
    num_opts: int = Field(ge=1)
    relation_difficulty: Literal[1, 2, 3]

    def shifted(self, by: int) -> TaskPreference:
        """Return a harder (+1) or easier (-1) preference, within the allowed range."""
        difficulty = min(3, max(1, self.relation_difficulty + by))
        return TaskPreference(
            num_entities=max(1, self.num_entities + by),
            num_opts=max(1, self.num_opts + by),
            relation_difficulty=difficulty,
        )


class EnvProfile(_Part):
    """Description of an environment for prompts. `name` is the user who asks the tasks."""

    name: str = Field(min_length=1)
    background: str
    entities: list[Entity] = Field(min_length=1)
    task_preference: TaskPreference
    rubrics: list[str] = Field(default_factory=list)

    def instruction(self) -> str:
        parts = [f"# {self.name}", self.background]
        for entity in self.entities:
            parts.append(f"## {entity.name}\n{entity.description}")
            if entity.attrs:
                parts.append("Attributes:\n" + "\n".join(f"- {key}: {text}" for key, text in entity.attrs.items()))
            if entity.opts:
                parts.append("Operations:\n" + "\n".join(f"- {opt.name}: {opt.description}" for opt in entity.opts))
        return "\n\n".join(parts)

    def preference_instruction(self, *wishes: str) -> str:
        """Return the wanted tasks as a Markdown list, followed by `wishes`."""
        wanted = self.task_preference
        lines = [
            f"- about {wanted.num_entities} entities per task",
            f"- about {wanted.num_opts} operations per task",
            f"- {_DIFFICULTY[wanted.relation_difficulty]}",
            *(f"- {rubric}" for rubric in self.rubrics),
            *(f"- {wish.strip()}" for wish in wishes if wish.strip()),
        ]
        return "\n".join(lines)

    def with_preference(self, preference: TaskPreference) -> EnvProfile:
        return self.model_copy(update={"task_preference": preference})

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


def parse_profile(data: Any, source: str) -> EnvProfile:
    """Validate a profile; raises ProfileError with `source` and the first invalid field."""
    try:
        return EnvProfile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the profile"
        raise ProfileError(f"{source}: {field}: {first['msg'].lower()}") from error


def load_profile(path: Path) -> EnvProfile:
    """Read a profile file; raises ProfileError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(
            f"{path}: cannot be read ({error.strerror}): set task_manager.env_profile to an existing file"
        ) from error
    except ValueError as error:
        raise ProfileError(f"{path}: not valid JSON: {error}") from error
    return parse_profile(data, str(path))


def save_profile(profile: EnvProfile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(profile.model_dump(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def shipped_profile(env_type: str) -> EnvProfile:
    """Return the profile beside the environment's class: `profile.NAME.json`, else `profile.json`.

    Raises ProfileError.
    """
    places = []
    if (spec := known_environments().get(env_type)) is not None:
        package = spec.partition(":")[0].rpartition(".")[0]
        try:
            names = (f"profile.{env_type}.json", "profile.json")
            places += [resources.files(package) / name for name in names] if package else []
        except ImportError:
            logger.info(
                "the package %s of %r is not installed, so there is no profile",
                package,
                env_type,
            )
    for place in places:
        if place.is_file():
            return parse_profile(json.loads(place.read_text(encoding="utf-8")), str(place))
    raise ProfileError(
        f"no profile is shipped for the environment {env_type!r}: draft one with `python -m task_manager profile`, "
        "and give it to task_manager.env_profile"
    )


def profile_for(env_type: str, path: Path | None) -> EnvProfile:
    return load_profile(path) if path is not None else shipped_profile(env_type)
