"""The environments of a run: the section `env_service`, and each environment as the run uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from agentevolver.config.section import Section
from env_service.feedback import FEEDBACK
from task_manager.settings import ServiceAccess


class EnvironmentSettings(Section):
    """`env_service.environments.<name>`: what is different in one environment of several. What is given here stands in
    the place of the key of the same name in `env_service` or `data`; null: that one."""

    env_params: dict[str, Any] | None = Field(None, description="in the place of env_service.env_params")
    val_env_params: dict[str, Any] | None = Field(None, description="in the place of env_service.val_env_params")
    train_split: str | None = Field(None, description="in the place of data.train_split")
    train_filter: dict[str, Any] | None = Field(None, description="in the place of data.train_filter")
    val_splits: list[str] | None = Field(
        None, description="in the place of data.val_splits; []: this environment is not validated on"
    )
    val_filter: dict[str, Any] | None = Field(None, description="in the place of data.val_filter")
    native_tools: bool | None = Field(
        None, description="false: its agents act by text, whatever tool_format says of the others"
    )


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment of a run: its share of what is trained on, its parameters and its splits."""

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
        """Return what an episode's create is sent; in validation an environment says no more than it does of itself."""
        params = {**self.env_params, **(self.val_env_params if validation else {})}
        return {**params, FEEDBACK: "plain"} if validation and FEEDBACK in params else params


class EnvServiceSettings(ServiceAccess, Section):
    """The section `env_service`."""

    env_type: str | dict[str, float] = Field(
        "appworld",
        description="the environment's name: built in, installed, or given by --env-module; or several with their "
        "shares of the tasks that are trained on, `{NAME: 2, OTHER: 1}` (0: validated on alone)",
    )
    environments: dict[str, EnvironmentSettings] = Field(
        default_factory=dict,
        description="of several environments, by name, what is different in one: env_params, val_env_params, "
        "train_split, train_filter, val_splits, val_filter, each in the place of the key of that name; and "
        "native_tools, false where its agents are to act by text although tool_format is set. Limits (max_steps, "
        "lengths of prompt and response) are the run's: set them for the environment that needs most",
    )
    val_env_params: dict[str, Any] = Field(
        default_factory=dict, description="replaces keys of env_params in validation"
    )
    unavailable_timeout_s: float = Field(
        120,
        ge=0,
        description="seconds to wait for a service that does not answer, before a rollout is given up; a call, and the "
        "release of its instance after it, is tried for two minutes each before they begin",
    )
    pass_env: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = Field(
        default_factory=list,
        description="names of secret variables that environments may see when the launcher starts the service",
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
            raise ValueError("all weights are 0, so nothing would be trained on: give one of them another")
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
        """The names of the run's environments, in the order in which they are written."""
        return (self.env_type,) if isinstance(self.env_type, str) else tuple(self.env_type)

    def weight(self, env_type: str) -> float:
        """Return the weight of one of the environments: 1 where there is one alone."""
        return 1.0 if isinstance(self.env_type, str) else self.env_type[env_type]

    @property
    def is_mixture(self) -> bool:
        """Whether there are several environments."""
        return len(self.env_types) > 1
