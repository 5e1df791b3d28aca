"""Settings of the section `llm`: an endpoint for every role, the cache, the budget, and the stand-in of offline runs.

They hold the names of key variables, never a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator, model_validator

from agentevolver.utils import recipes
from agentevolver.utils.net import http_url

OFFLINE = "offline"
POLICY = "policy"
# Our own models: a seed determines their replies. Other servers may not know the parameter, or ignore it.
SEEDED = (OFFLINE, POLICY)
CACHE_FILE = "llm_replies.sqlite"
# Variable with the stand-in's token, if it has one.
TEACHER_TOKEN = "TEACHER_TOKEN"

# fmt: off
OPENAI_SAMPLING = frozenset({
    "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop", "presence_penalty",
    "frequency_penalty", "reasoning_effort", "response_format", "tool_choice",
})
# Fields of the body beyond the OpenAI API that some servers know.
EXTRA_SAMPLING = frozenset({
    "top_k", "min_p", "repetition_penalty", "chat_template_kwargs", "enable_thinking", "thinking_budget", "extra_body",
})
# fmt: on
_WAITS = "it is fixed: rate limits and outages are waited for 10 minutes"
_PACE = "the rate is not limited here; a server's own limit is waited for, and concurrency bounds the calls in flight"
REMOVED = {
    "dialect": "set omit, json_mode and sampling.extra_body instead",
    "api_version": "end base_url of Azure with /openai/v1",
    "call_timeout_s": _WAITS,
    "max_wait_s": _WAITS,
    "rate_limit_timeout_s": _WAITS,
    "unavailable_timeout_s": _WAITS,
    "requests_per_minute": _PACE,
    "tokens_per_minute": _PACE,
    "context_limit": "a prompt that is too long is shortened after the server's refusal",
}


class Role(StrEnum):
    """Role of a language model in training."""

    EXPLORER = "explorer"
    SYNTHESISER = "synthesiser"
    VERIFIER = "verifier"
    JUDGE = "judge"
    ATTRIBUTOR = "attributor"
    SUMMARISER = "summariser"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def merged(default: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters with `own` laid over `default`."""
    out = {**default, **own}
    # One parameter with two names: the value of `own` counts, under the newer name if both are given.
    older, newer = "max_tokens", "max_completion_tokens"
    if out.get(older) is not None and out.get(newer) is not None:
        if own.get(older) is not None:
            out[newer] = own[older]
        del out[older]
    return out


def check_sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters that are not None; raises ValueError for an unknown one."""
    unknown = sorted(set(sampling) - OPENAI_SAMPLING - EXTRA_SAMPLING)
    if unknown:
        raise ValueError(
            f"unknown sampling parameter {unknown[0]!r}; known are "
            f"{', '.join(sorted(OPENAI_SAMPLING | EXTRA_SAMPLING))}"
        )
    if not isinstance(sampling.get("extra_body") or {}, Mapping):
        raise ValueError("extra_body must be a mapping of fields of the request's body")
    return {key: value for key, value in sampling.items() if value is not None}


class EndpointSettings(_Section):
    """One OpenAI-compatible endpoint."""

    base_url: str = Field(
        OFFLINE,
        description="http(s)://.../v1, `offline` (the stand-in of a recipe) or `policy` (the vLLM that rolls out)",
    )
    model: str = Field(
        "teacher", min_length=1, description="model name; ignored for `policy`, which is served under its own name"
    )
    api_key_env: str | None = Field(
        "OPENAI_API_KEY",
        description="environment variable that holds the key, never the key itself; null: the endpoint needs none",
    )
    sampling: dict[str, Any] = Field(
        default_factory=lambda: {"temperature": 0.7, "max_tokens": 4096},
        description="parameters to send; a call may override them",
    )
    omit: list[str] = Field(default_factory=list, description="parameters that are never sent, even if set")
    json_mode: Literal["prompt", "object", "schema"] = Field(
        "schema",
        description="how JSON is requested: by the prompt alone (so too where an endpoint refuses more, and by "
        "`offline`), or also by response_format json_object or json_schema",
    )
    concurrency: int = Field(16, ge=1, description="calls in flight at once, per role and process")
    timeout_s: float = Field(120.0, gt=0, description="seconds of one try")
    tries: int = Field(5, ge=1, description="attempts at one request")
    price_in: float = Field(0.0, ge=0, description="price of a million prompt tokens")
    price_out: float = Field(0.0, ge=0, description="price of a million completion tokens")

    @model_validator(mode="before")
    @classmethod
    def _no_removed_key(cls, value: Any) -> Any:
        if isinstance(value, dict) and (name := next((name for name in REMOVED if name in value), None)):
            raise ValueError(f"there is no key {name} here: {REMOVED[name]}")
        return value

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value in (OFFLINE, POLICY):
            return value
        try:
            parts = urlsplit(http_url(value))
        except ValueError as error:
            raise ValueError(f"{error}, or `{OFFLINE}` or `{POLICY}`") from error
        if parts.username or parts.password:
            raise ValueError(
                "must not hold a user name or a password; name the variable that holds the key in api_key_env"
            )
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _is_name(cls, value: str | None) -> str | None:
        # A key pasted here would be written into every experiment's config.yaml.
        if value is not None and not (
            value.replace("_", "a").isalnum() and value.upper() == value and len(value) <= 64
        ):
            raise ValueError("must be the name of an environment variable, in capitals, not the key itself")
        return value

    @field_validator("sampling")
    @classmethod
    def _is_known(cls, value: dict[str, Any]) -> dict[str, Any]:
        return check_sampling(value)

    @field_validator("omit")
    @classmethod
    def _can_be_omitted(cls, value: list[str]) -> list[str]:
        known = OPENAI_SAMPLING | EXTRA_SAMPLING | {"tools"}
        if unknown := sorted(set(value) - known):
            raise ValueError(f"{unknown[0]!r} cannot be left out; these can: {', '.join(sorted(known))}")
        return value

    def response_format(self, schema: type[BaseModel]) -> dict[str, Any]:
        """Return the sampling parameter that requests JSON of a schema, or {} if the prompt alone requests it."""
        if self.base_url == OFFLINE or self.json_mode == "prompt":
            return {}
        if self.json_mode == "object":
            return {"response_format": {"type": "json_object"}}
        wanted = {"name": schema.__name__, "schema": _strict(schema.model_json_schema())}
        return {"response_format": {"type": "json_schema", "json_schema": wanted}}

    @property
    def key_variable(self) -> str | None:
        """The variable with the endpoint's key, or None if the endpoint is ours or needs no key."""
        return None if self.base_url in (OFFLINE, POLICY) else self.api_key_env


_UNSENT = ("default", "maxLength", "maxItems")


def _strict(schema: Any) -> Any:
    """Return a JSON schema for constrained decoding: every key required, no other keys, no long bounds.

    A small model omits optional reasons. For a text of at most 20,000 characters xgrammar blocks the engine for
    minutes.
    """
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(part) for key, part in schema.items() if key not in _UNSENT}
    if isinstance(made.get("properties"), dict):
        made |= {"required": list(made["properties"]), "additionalProperties": False}
    return made


class BudgetSettings(_Section):
    """`budget`: the most that a run may spend, resumed runs included; null: no limit. Cached replies are free."""

    max_tokens: int | None = Field(None, ge=1, description="prompt and completion tokens of all roles")
    max_cost: float | None = Field(None, gt=0, description="cost of all roles, in the currency of the prices")


class StandIn(_Section):
    """Settings of the program that plays the roles whose base_url is `offline`. A recipe registers a subclass
    (`Recipe.stand_in`); without one, no program plays them."""

    url: str = Field("", description="where it answers, ending in /v1; the launcher fills in the port that it takes")

    @property
    def health_url(self) -> str:
        return self.url.removesuffix("/v1") + "/healthz"

    def arguments(self) -> list[str]:
        """Return the arguments after the Python interpreter on the command line that starts the program."""
        return []

    def problem(self, role: Role, env_types: Sequence[str], purpose: Purpose) -> str | None:
        """Return why the program cannot play a role in these environments, or None if it can."""
        return "is the default, and no installed program plays the role"


Purpose = Literal["episodes", "notes"]
"""What a role is asked about: episodes, or an agent's notes within one."""


def stand_in(value: Any = None) -> StandIn:
    kind = next((one.stand_in for one in recipes.recipes().values() if one.stand_in is not None), StandIn)
    made = kind.model_validate(value or {})
    assert isinstance(made, StandIn)
    return made


class LLMSettings(EndpointSettings):
    """The section `llm`: the default endpoint, with each role's own keys under `roles.<role>`."""

    roles: dict[Role, dict[str, Any]] = Field(
        default_factory=dict,
        description="keys of the endpoint that differ for a role; its sampling parameters override the default's",
    )
    cache: Literal[False] | Path | None = Field(
        None,
        description="SQLite file that keeps replies by endpoint, model, messages and sampling, for all roles; null: "
        "where tasks are made "
        "alone, in the run's own folder; false: nowhere",
    )
    ledger: Path | None = Field(None, description="SQLite file of the ledger of costs; null: the run's own, or memory")
    budget: BudgetSettings = BudgetSettings()
    teacher: SerializeAsAny[StandIn] = Field(
        default_factory=stand_in, description="the program that plays the roles whose base_url is `offline`"
    )

    @field_validator("teacher", mode="before")
    @classmethod
    def _registered(cls, value: Any) -> Any:
        return stand_in(value) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _roles_hold(self) -> Self:
        for role in Role:
            try:
                self.endpoint(role)
            except ValueError as error:
                first = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": str(error)}
                place = ".".join(["roles", role.value, *map(str, first["loc"])])
                raise ValueError(f"{place}: {first['msg']}") from error
        return self

    def endpoint(self, role: Role) -> EndpointSettings:
        """Return the endpoint of a role: the defaults with the role's own keys over them."""
        own = self.roles.get(role, {})
        default = {name: getattr(self, name) for name in EndpointSettings.model_fields}
        sampling = own.get("sampling") or {}
        if not isinstance(sampling, Mapping):
            raise ValueError("sampling must be a mapping of parameters")
        return EndpointSettings.model_validate({**default, **own, "sampling": merged(self.sampling, sampling)})

    def task_making_cache(self, folder: Path) -> Path | Literal[False]:
        """Return the cache's file while tasks are made: the configured one, else one in the run's folder."""
        return folder / CACHE_FILE if self.cache is None else self.cache

    @property
    def needs_teacher(self) -> bool:
        """Whether a role uses the stand-in, so that it must be started."""
        return any(self.endpoint(role).base_url == OFFLINE for role in Role)
