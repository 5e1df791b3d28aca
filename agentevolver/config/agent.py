"""The user's own agent: its keys in `actor_rollout_ref.rollout`, and the import of `package.module:function`.

Such an agent speaks OpenAI's or Anthropic's API and replaces a built-in flow. Keys that only a flow reads are refused.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentevolver.utils.errors import ConfigError

SECTION = "actor_rollout_ref.rollout"
# Placeholders in the words of `agent_command`.
PLACEHOLDERS = ("query", "base_url", "anthropic_base_url", "model", "mcp_url", "task_file")
_SPEC = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class AgentSettings(BaseModel):
    """Keys of the user's own agent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent_function: str | None = Field(
        None,
        description="the user's agent, package.module:function, called with (task, endpoint, world) for each rollout; "
        "`agent: package.module:function` means the same",
    )
    agent_command: list[str] | None = Field(
        None,
        min_length=1,
        description="instead of agent_function: a program as a list of words, started for each rollout; {query}, "
        "{base_url}, {anthropic_base_url}, {model}, {mcp_url} and {task_file} are filled in",
    )
    agent_timeout_s: float = Field(600, gt=0, description="time limit of the user's agent for a rollout, in seconds")
    agent_world: bool = Field(
        True,
        description="true: the user's agent acts in the environment, which grades the rollout; false: the agent has "
        "its own tools, the environment only gives the task, and the agent returns the score",
    )
    agent_container: Literal["auto", "docker", "podman", "process"] | None = Field(
        None,
        description="run agent_command in its task's container, whose tests then grade (environment of task "
        "folders): docker, podman, or auto for the one that is installed; process: no container, a folder instead",
    )
    train_agent_errors: bool = Field(
        False,
        description="grade and train on rollouts in which the user's agent raised or exceeded agent_timeout_s",
    )

    @field_validator("agent_function")
    @classmethod
    def _function(cls, value: str | None) -> str | None:
        if value is not None and _SPEC.fullmatch(value) is None:
            raise ValueError("write package.module:function")
        return value

    @field_validator("agent_command")
    @classmethod
    def _command(cls, words: list[str] | None) -> list[str] | None:
        if words is None:
            return None
        program, *others = words
        return [_word(program, is_file="/" in program), *(_word(word, is_file=Path(word).is_file()) for word in others)]

    @property
    def is_served(self) -> bool:
        """Whether the user's agent plays the rollouts."""
        return self.agent_function is not None or self.agent_command is not None


def _word(word: str, *, is_file: bool) -> str:
    """Return one word of a command, a file's path made absolute. Raises ValueError if a placeholder is unknown."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(word) if name is not None]
    except ValueError as error:
        raise ValueError(f"{word!r}: {error}; write {{{{ and }}}} for braces") from error
    for name in names:
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            known += "; every user can read a command line, so the key is in OPENAI_API_KEY alone"
            raise ValueError(f"{word!r}: {{{name}}} is not known; known are {known}; write {{{{ and }}}} for braces")
    # The program starts in a folder of its own, where a relative path would not be found.
    return str(Path(word).absolute()) if is_file and not names else word


def check_agent(settings: AgentSettings, *, template: str, flow: str, observation_role: str | None) -> None:
    """Raise ConfigError if keys contradict one another or have no effect beside the user's agent."""
    if settings.agent_function is not None and settings.agent_command is not None:
        raise ConfigError(f"{SECTION}.agent_function and {SECTION}.agent_command are both set: remove one of them")
    if not settings.is_served:
        for key, field in AgentSettings.model_fields.items():
            if getattr(settings, key) != field.default:
                raise ConfigError(
                    f"{SECTION}.{key} has an effect only with an agent of your own: set {SECTION}.agent_function "
                    f"or {SECTION}.agent_command, or remove the key"
                )
        return
    if settings.agent_container is not None and (settings.agent_command is None or settings.agent_world):
        raise ConfigError(
            f"{SECTION}.agent_container = {settings.agent_container}: the task's tests grade the work of a program in "
            f"its container: set {SECTION}.agent_command, and {SECTION}.agent_world to false"
        )
    chosen = "agent_function" if settings.agent_function is not None else "agent_command"
    for key, value, wanted in (
        ("context_template", template, ("causal", "linear")),
        ("agent_flow", flow, ("react",)),
        ("observation_role", observation_role, (None,)),
    ):
        if value not in wanted:
            raise ConfigError(
                f"{SECTION}.{key} = {value} has no effect with {SECTION}.{chosen}: your agent keeps its own "
                "messages and decides when to call the model; remove the key"
            )


def check_command(settings: AgentSettings) -> None:
    """Raise ConfigError if the agent's program or the container program is not installed."""
    words, container = settings.agent_command, settings.agent_container
    if container not in (None, "process"):
        programs = ("docker", "podman") if container == "auto" else (str(container),)
        if not any(map(shutil.which, programs)):
            raise ConfigError(
                f"{SECTION}.agent_container = {container}: no {' or '.join(programs)} in PATH: install one, or write "
                "process, which isolates nothing"
            )
        return
    if words is not None and shutil.which(words[0]) is None:
        raise ConfigError(
            f"{SECTION}.agent_command: no program {words[0]!r} in PATH ({os.environ.get('PATH', '')}): install it, or "
            "write its path"
        )


def agent_function(spec: str) -> Callable[..., Any]:
    """Import `package.module:function`.

    Raises:
        ConfigError: the import fails, or the function does not take (task, endpoint, world).
    """
    module, _, name = spec.partition(":")
    place = f"{SECTION}.agent_function = {spec}"
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except Exception as error:  # the boundary: importing runs the user's code
        raise ConfigError(
            f"{place}: cannot be imported: {type(error).__name__}: {' '.join(str(error).split())}; its folder must be "
            "the one that the launcher is started in, or be in PYTHONPATH"
        ) from error
    if not callable(found):
        raise ConfigError(f"{place}: is a {type(found).__name__}, not a function")
    try:
        inspect.signature(found).bind(None, None, None)
    except TypeError as error:
        raise ConfigError(
            f"{place}: must take three arguments, (task, endpoint, world): {error}; it takes {inspect.signature(found)}"
        ) from error
    except ValueError:  # a function in C has no signature
        pass
    return found  # type: ignore[no-any-return]
