"""Environments of a run: the section `env_service`, and each environment with its resolved settings."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from agentevolver.config.section import Section
from agentevolver.utils.experiments import launches
from env_service.arguments import add_env_modules
from env_service.feedback import FEEDBACK
from task_manager.settings import ServiceAccess


def launched_with(experiment: Path) -> list[str]:
    """Return the `--env-module` values of an experiment's last launch."""
    # The environment may be known only by the run's --env-module. All other options of the launch are ignored.
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    add_env_modules(parser)
    argv: list[str] = next((record["argv"] for record in launches(experiment)), [])
    modules: list[str] = parser.parse_known_args(argv)[0].env_modules
    return modules


class EnvironmentSettings(Section):
    """`env_service.environments.<name>`: settings of one of several environments. A value replaces the key of the same
    name in `env_service` or `data`; null keeps that key's value."""

    env_params: dict[str, Any] | None = Field(None, description="replaces env_service.env_params")
    val_env_params: dict[str, Any] | None = Field(None, description="replaces env_service.val_env_params")
    train_split: str | None = Field(None, description="replaces data.train_split")
    train_filter: dict[str, Any] | None = Field(None, description="replaces data.train_filter")
    val_splits: list[str] | None = Field(
        None, description="replaces data.val_splits; []: the environment is not validated"
    )
    val_filter: dict[str, Any] | None = Field(None, description="replaces data.val_filter")
    native_tools: bool | None = Field(
        None, description="false: agents of this environment act by text, even if tool_format is set"
    )


@dataclass(frozen=True, slots=True)
class Environment:
    """Environment of a run: its training weight, parameters and splits."""

    env_type: str
    weight: float
    env_params: Mapping[str, Any]
    val_env_params: Mapping[str, Any]
    train_split: str
    train_filter: Mapping[str, Any]
    val_splits: tuple[str, ...]
    val_filter: Mapping[str, Any]
    native_tools: bool = True

    def params(self, *, validation: bool) -> dict[str, Any]:
        params = {**self.env_params, **(self.val_env_params if validation else {})}
        # Extra feedback in validation would change what is measured.
        return {**params, FEEDBACK: "plain"} if validation and FEEDBACK in params else params


class EnvServiceSettings(ServiceAccess, Section):
    """The section `env_service`: environments and their service."""

    env_type: str | dict[str, float] = Field(
        "appworld",
        description="the environment's name: built in, installed, or given by --env-module; or several environments "
        "with their shares of the training tasks, `{NAME: 2, OTHER: 1}` (0: only validated)",
    )
    environments: dict[str, EnvironmentSettings] = Field(
        default_factory=dict,
        description="settings of single environments, by name: env_params, val_env_params, train_split, train_filter, "
        "val_splits and val_filter replace the keys of the same name; native_tools: false lets agents act by text "
        "even if tool_format is set. Limits (max_steps, prompt and response lengths) hold for the whole run: set them "
        "for the environment that needs most",
    )
    val_env_params: dict[str, Any] = Field(
        default_factory=dict, description="parameters that replace those of env_params in validation"
    )
    unavailable_timeout_s: float = Field(
        120,
        ge=0,
        description="seconds that a rollout waits for a service that does not answer, before it fails; they start "
        "after two minutes of retries of the call, and two of the release of its instance",
    )
    pass_env: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = Field(
        default_factory=list,
        description="secret environment variables passed on to environments if the launcher starts the service",
    )

    @field_validator("env_type", mode="before")
    @classmethod
    def _check_env_type(cls, value: Any) -> Any:
        if isinstance(value, str) and value:
            return value
        if not isinstance(value, Mapping) or not value:
            raise ValueError("write an environment's name, or several with their weights ({NAME: 2, OTHER: 1})")
        for name, weight in value.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"an environment's name is a text, found {name!r}")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not isfinite(weight) or weight < 0:
                raise ValueError(f"the weight of {name} must be a number of at least 0, found {weight!r}")
        if not any(value.values()):
            raise ValueError("all weights are 0, so nothing would be trained on: raise one of them")
        # One name is the plain form, whatever its weight.
        return next(iter(value)) if len(value) == 1 else {name: float(weight) for name, weight in value.items()}

    @model_validator(mode="after")
    def _check_environments(self) -> Self:
        for name in self.environments:
            if name not in self.env_types:
                raise ValueError(
                    f"environments.{name} is not one of the run's environments ({', '.join(self.env_types)}): add it "
                    "to env_type, or remove it"
                )
        return self

    @property
    def env_types(self) -> tuple[str, ...]:
        """Names of the environments, in the order of the configuration."""
        return (self.env_type,) if isinstance(self.env_type, str) else tuple(self.env_type)

    def weight(self, env_type: str) -> float:
        """Return an environment's weight, 1 if it is the only one."""
        return 1.0 if isinstance(self.env_type, str) else self.env_type[env_type]

    @property
    def is_mixture(self) -> bool:
        return len(self.env_types) > 1
