"""Settings of the section `llm`: an endpoint for every role, the cache, the budget, and the stand-in of offline runs.

Strict, frozen, and documented where it is declared. It holds the *names* of key variables and never a key. Nothing here
opens a connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

OFFLINE = "offline"
POLICY = "policy"
# Models of ours, whose replies follow from a seed. Others may not know the parameter, or not keep to it.
SEEDED = (OFFLINE, POLICY)
CACHE_FILE = "llm_replies.sqlite"
# Holds what the built-in teacher asks for, where that is set.
TEACHER_TOKEN = "TEACHER_TOKEN"

# fmt: off
OPENAI_SAMPLING = frozenset({
    "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop", "presence_penalty",
    "frequency_penalty", "reasoning_effort", "response_format", "tool_choice",
})
# Fields of the body that servers know beyond the OpenAI API.
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
    """Role: what a language model is asked to do."""

    EXPLORER = "explorer"
    SYNTHESISER = "synthesiser"
    VERIFIER = "verifier"
    JUDGE = "judge"
    ATTRIBUTOR = "attributor"
    SUMMARISER = "summariser"
    PROPOSER = "proposer"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def merged(default: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters with `own` laid over the default. `max_tokens` and `max_completion_tokens` are one
    parameter of two names: the value of `own` counts, under the newer name if both are given."""
    out = {**default, **own}
    older, newer = "max_tokens", "max_completion_tokens"
    if out.get(older) is not None and out.get(newer) is not None:
        if own.get(older) is not None:
            out[newer] = own[older]
        del out[older]
    return out


def check_sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters without those that are None; raises ValueError for one that is not known."""
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
    """One OpenAI-compatible endpoint and how it is used."""

    base_url: str = Field(
        OFFLINE, description="http(s)://.../v1, `offline` (the built-in teacher) or `policy` (the vLLM that rolls out)"
    )
    model: str = Field(
        "teacher", min_length=1, description="model name; for `policy` the served one's, whatever stands here"
    )
    api_key_env: str | None = Field(
        "OPENAI_API_KEY",
        description="environment variable that holds the key, never the key itself; null: the endpoint wants none",
    )
    sampling: dict[str, Any] = Field(
        default_factory=lambda: {"temperature": 0.7, "max_tokens": 4096},
        description="what is sent unless a call says otherwise",
    )
    omit: list[str] = Field(default_factory=list, description="parameters that are never sent, whoever sets them")
    json_mode: Literal["prompt", "object", "schema"] = Field(
        "prompt",
        description="how JSON is asked for: by the prompt, or by response_format json_object or json_schema too",
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
        parts = urlsplit(value)
        if value not in (OFFLINE, POLICY) and (parts.scheme not in ("http", "https") or not parts.netloc):
            raise ValueError(f"must be http(s)://host/..., `{OFFLINE}` or `{POLICY}`")
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
        """Return the sampling parameter that asks for JSON of a schema; empty if the prompt alone does."""
        if self.json_mode == "schema":
            wanted = {"name": schema.__name__, "schema": schema.model_json_schema()}
            return {"response_format": {"type": "json_schema", "json_schema": wanted}}
        return {"response_format": {"type": "json_object"}} if self.json_mode == "object" else {}

    @property
    def key_variable(self) -> str | None:
        """The variable that a call needs; None for endpoints of our own and those that want no key."""
        return None if self.base_url in (OFFLINE, POLICY) else self.api_key_env


class BudgetSettings(_Section):
    """`budget`: the most that a run may spend, resumed runs included; null: no limit.
    What comes from the cache is free."""

    max_tokens: int | None = Field(None, ge=1, description="prompt and completion tokens of all roles")
    max_cost: float | None = Field(None, gt=0, description="cost of all roles, in the currency of the prices")


class TeacherSettings(_Section):
    """The built-in teacher: a rule-based stand-in for a language model, for the pocket world only."""

    url: str = Field(
        "http://127.0.0.1:8093/v1", description="where the launcher starts it, if any role's base_url is `offline`"
    )
    seed: int = Field(0, description="of its draws and mistakes")
    hallucinated: float = Field(
        0.15, ge=0, le=1, description="share of synthesised tasks that do not hold in the world"
    )
    malformed: float = Field(0.02, ge=0, le=1, description="share of replies that are no JSON, or half of one")
    wrong_labels: float = Field(0.1, ge=0, le=1, description="share of step labels that are turned round")
    wrong_grades: float = Field(0.02, ge=0, le=1, description="share of grades that are turned round")
    wrong_accepts: float = Field(0.005, ge=0, le=1, description="share of acceptances that are turned round")
    wrong_experiences: float = Field(0.05, ge=0, le=1, description="share of experiences that say what is not so")
    slips: float = Field(0.05, ge=0, le=1, description="share of the verifier's actions that are not what it would do")

    @field_validator("url")
    @classmethod
    def _is_local(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme != "http" or parts.port is None or parts.path.rstrip("/") != "/v1":
            raise ValueError("must be of the form http://127.0.0.1:PORT/v1")
        return value.rstrip("/")

    @property
    def health_url(self) -> str:
        """Where it says that it is up."""
        return self.url.removesuffix("/v1") + "/healthz"

    @property
    def rates(self) -> dict[str, float]:
        """Its shares of mistakes by name."""
        return {name: value for name, value in self.model_dump().items() if name not in ("url", "seed")}

    def arguments(self) -> list[str]:
        """Return what follows the Python interpreter on the command line that starts it."""
        parts = urlsplit(self.url)
        rates = [f"--{name.replace('_', '-')}={value:g}" for name, value in self.rates.items()]
        return [
            "-m",
            "agentevolver.builtin.teacher",
            f"--host={parts.hostname}",
            f"--port={parts.port}",
            f"--seed={self.seed}",
            *rates,
        ]


class LLMSettings(EndpointSettings):
    """The section `llm`: the endpoint of every role, and what a role has of its own under `roles.<role>`."""

    roles: dict[Role, dict[str, Any]] = Field(
        default_factory=dict,
        description="keys of the endpoint that differ for a role; its sampling is laid over the default's",
    )
    cache: Literal[False] | Path | None = Field(
        None,
        description="SQLite file that keeps replies by endpoint, model, messages and sampling, for all roles; null: "
        "where tasks are made "
        "alone, in the run's own folder; false: nowhere",
    )
    ledger: Path | None = Field(
        None, description="SQLite file that keeps what was spent; null: the run's own, or memory"
    )
    budget: BudgetSettings = BudgetSettings()
    teacher: TeacherSettings = TeacherSettings()

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
        """Return the endpoint of a role: the default's keys with the role's own over them."""
        own = self.roles.get(role, {})
        default = {name: getattr(self, name) for name in EndpointSettings.model_fields}
        sampling = own.get("sampling") or {}
        if not isinstance(sampling, Mapping):
            raise ValueError("sampling must be a mapping of parameters")
        return EndpointSettings.model_validate({**default, **own, "sampling": merged(self.sampling, sampling)})

    def task_making_cache(self, folder: Path) -> Path | Literal[False]:
        """Return where replies are kept while tasks are made: as set, else in a folder of the run's own."""
        return folder / CACHE_FILE if self.cache is None else self.cache

    @property
    def needs_teacher(self) -> bool:
        """Whether a role is played by the built-in teacher, so that the launcher must start it."""
        return any(self.endpoint(role).base_url == OFFLINE for role in Role)
