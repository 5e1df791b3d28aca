"""Names of environments, and the classes behind them.

A name comes from here and from nowhere else: the built-in table, the installed packages' entry points (group
`agentevolver.environments`), and `--env-module NAME=package.module:Class` of the person who starts the service. A
request can only pick one of the names that are served; it never reaches an import. Classes are imported late, by the
process that hosts them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import ClassVar, TypeVar

from agentevolver.utils.names import did_you_mean
from env_service.base import BaseEnv
from env_service.contract import ContractError, checked_class

BUILT_IN = {
    "pocket": "env_service.environments.pocket.env:PocketEnv",
    "pocket_long": "env_service.environments.pocket.long_env:PocketLongEnv",
    "pocket_app": "env_service.environments.pocket.app_env:PocketAppEnv",
    "bfcl": "env_service.environments.bfcl.env:BfclEnv",
    "appworld": "env_service.environments.appworld.env:AppworldEnv",
    "mcp": "env_service.environments.mcp_tools.env:McpEnv",
    "python": "env_service.environments.python_tool.env:PythonEnv",
    "gymnasium": "env_service.environments.gymnasium.env:GymnasiumEnv",
    "calc": "env_service.environments.calc.env:CalcEnv",
    "reasoning_gym": "env_service.environments.reasoning_gym.env:ReasoningGymEnv",
    "propose": "env_service.environments.propose.env:ProposeEnv",
    "tau2": "env_service.environments.tau2.env:Tau2Env",
    "textarena": "env_service.environments.textarena.env:TextarenaEnv",
    "catalogue": "env_service.environments.catalogue.env:CatalogueEnv",
    "scienceworld": "env_service.environments.scienceworld.env:ScienceworldEnv",
    "webshop": "env_service.environments.webshop.env:WebshopEnv",
    "textworld": "env_service.environments.textworld.env:TextworldEnv",
}
ENTRY_POINT_GROUP = "agentevolver.environments"
_SPEC = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


Env = TypeVar("Env", bound=type[BaseEnv])


class Registry:
    """The decorator of AgentEvolver's environment classes:
    `@Registry.register("name")` marks a class and leaves it as it is.

    A name is served because the service is told so (`--env-module`, an entry point), not because a module was imported;
    so what was registered is known in this process alone.
    """

    _classes: ClassVar[dict[str, type[BaseEnv]]] = {}

    @classmethod
    def register(cls, name: str) -> Callable[[Env], Env]:
        """Return the decorator for a class; it raises TypeError for what is no `BaseEnv`."""

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
        """Return the class of a name; raises KeyError with the names there are."""
        if name not in cls._classes:
            raise KeyError(
                f"no environment {name!r} was registered; there are {', '.join(sorted(cls._classes)) or 'none'}"
            )
        return cls._classes[name]


class RegistryError(Exception):
    """A name or a `module:Class` text cannot be used; the message says which and what to write instead."""


def known_environments(extra: Iterable[str] = ()) -> dict[str, str]:
    """Return name -> `module:Class` of everything that can be served;
    `extra` holds `NAME=module:Class` texts and wins."""
    found = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    found = {**found, **BUILT_IN}
    for text in extra:
        name, separator, spec = text.partition("=")
        if not separator or not _NAME.fullmatch(name) or not _SPEC.fullmatch(spec):
            raise RegistryError(f"--env-module {text!r} is not of the form NAME=package.module:Class")
        found[name] = spec
    return found


def resolve(names: Iterable[str], extra: Iterable[str] = ()) -> dict[str, str]:
    """Return name -> `module:Class` of the asked names, in their order;
    raise RegistryError that names the nearest known one."""
    known = known_environments(extra)
    chosen: dict[str, str] = {}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, "add it with --env-module NAME=package.module:Class")
            raise RegistryError(f"environment {name!r} is not known (known: {', '.join(sorted(known))}); {hint}")
        chosen[name] = known[name]
    return chosen


def load(spec: str) -> type[BaseEnv]:
    """Import the class that `module:Class` names; raise RegistryError if it is not there or cannot be hosted."""
    module_name, _, class_name = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RegistryError(f"cannot import {module_name!r} of environment {spec!r}: {error}") from error
    try:
        return checked_class(getattr(module, class_name, None), spec)
    except ContractError as error:
        raise RegistryError(str(error)) from error
