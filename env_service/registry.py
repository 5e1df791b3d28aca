"""Find environments by name.

A name comes from a folder of `env_service/environments` with a registration file, an entry point (group
`agentevolver.environments`), or `--env-module NAME=package.module:Class`, which wins. Finding imports no environment:
the process that hosts it does.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import ClassVar, TypeVar

from agentevolver.utils.names import did_you_mean
from env_service.base import BaseEnv
from env_service.contract import ContractError, checked_class

FOLDERS = Path(__file__).with_name("environments")
REGISTRATION = "environment.toml"
ENTRY_POINT_GROUP = "agentevolver.environments"
_SPEC = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


Env = TypeVar("Env", bound=type[BaseEnv])


class Registry:
    """The decorator of AgentEvolver's environment classes: `@Registry.register("name")` leaves a class as it is.

    Names are known in this process only. The service serves a name because of `--env-module` or an entry point.
    """

    _classes: ClassVar[dict[str, type[BaseEnv]]] = {}

    @classmethod
    def register(cls, name: str) -> Callable[[Env], Env]:
        """Return the decorator for a class; it raises TypeError unless the class is a `BaseEnv`."""

        def keep(env_class: Env) -> Env:
            if not (isinstance(env_class, type) and issubclass(env_class, BaseEnv)):
                raise TypeError(
                    f"{env_class!r}, registered as {name!r}, must be a subclass of env_service.base.BaseEnv"
                )
            cls._classes[name] = env_class
            return env_class

        return keep

    @classmethod
    def get(cls, name: str) -> type[BaseEnv]:
        """Return the class of a name; raises KeyError that lists the names."""
        if name not in cls._classes:
            raise KeyError(
                f"no environment {name!r} was registered; there are {', '.join(sorted(cls._classes)) or 'none'}"
            )
        return cls._classes[name]


class RegistryError(Exception):
    """A name or a `module:Class` text cannot be used; the message says what to write."""


@dataclass(frozen=True, slots=True)
class EnvironmentFolder:
    """The registration of a folder of environments. Modules in its file are relative to the folder."""

    path: Path
    serves: dict[str, str] = field(default_factory=dict)  # name -> `package.module:Class`
    imports: tuple[str, ...] = ()  # folders whose code this one imports
    # Option of `new` -> (`package.module:function`, help), for skeletons that a file describes.
    skeletons: dict[str, tuple[str, str]] = field(default_factory=dict)


def environment_folders() -> list[EnvironmentFolder]:
    """Return the registered folders by name; raise RegistryError for an unreadable registration."""
    return [_read_folder(path) for path in sorted(FOLDERS.glob(f"*/{REGISTRATION}"))]


def _read_folder(path: Path) -> EnvironmentFolder:
    package = f"env_service.environments.{path.parent.name}"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return EnvironmentFolder(
            path.parent,
            {name: f"{package}.{spec}" for name, spec in data["serves"].items()},
            tuple(data.get("imports", ())),
            {
                option: (f"{package}.{skeleton['write']}", skeleton["help"])
                for option, skeleton in data.get("skeletons", {}).items()
            },
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RegistryError(f"{path} is not a registration of environments: {error!r}") from error


def known_environments(extra: Iterable[str] = ()) -> dict[str, str]:
    """Return name -> `module:Class` of all environments; `extra` holds `NAME=module:Class` texts and wins."""
    found = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    for folder in environment_folders():
        found |= folder.serves
    for text in extra:
        name, separator, spec = text.partition("=")
        if not separator or not _NAME.fullmatch(name) or not _SPEC.fullmatch(spec):
            raise RegistryError(f"--env-module {text!r} is not of the form NAME=package.module:Class")
        found[name] = spec
    return found


def resolve(names: Iterable[str], extra: Iterable[str] = ()) -> dict[str, str]:
    """Return name -> `module:Class` of `names`, in order; raises RegistryError with a suggestion."""
    known = known_environments(extra)
    chosen: dict[str, str] = {}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, "add it with --env-module NAME=package.module:Class")
            raise RegistryError(f"environment {name!r} is not known (known: {', '.join(sorted(known))}); {hint}")
        chosen[name] = known[name]
    return chosen


def load(spec: str) -> type[BaseEnv]:
    """Import the class that `module:Class` names; raise RegistryError if it is missing or cannot be hosted."""
    module_name, _, class_name = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RegistryError(f"cannot import {module_name!r} of environment {spec!r}: {error}") from error
    try:
        return checked_class(getattr(module, class_name, None), spec)
    except ContractError as error:
        raise RegistryError(str(error)) from error
