"""Client protocol without I/O: requests, their typed errors, and the rule for retries.

A request is retried only if it certainly was not carried out (connection refused, 503), or if carrying it out twice
does no harm (every route except a step without `step_index`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import orjson


class Instances(Protocol):
    """Client of environments; `env_service.client.AsyncEnvClient` has typed replies."""

    async def health(self) -> bool: ...

    async def get_env_profile(
        self, env_type: str, split: str = ..., params: dict[str, Any] | None = ...
    ) -> list[str]: ...

    async def create_instance(
        self, env_type: str, task_id: str, instance_id: str | None = ..., params: dict[str, Any] | None = ...
    ) -> Any: ...

    async def step(
        self, instance_id: str, action: Any, params: dict[str, Any] | None = ..., step_index: int | None = ...
    ) -> Any: ...

    async def evaluate(self, instance_id: str, messages: Any = ..., params: dict[str, Any] | None = ...) -> float: ...

    async def get_tools_info(
        self, instance_id: str, messages: Any = ..., params: dict[str, Any] | None = ...
    ) -> Any: ...

    async def release_instance(self, instance_id: str) -> bool: ...


class Repeat(Enum):
    """Whether a failed request may be sent again."""

    NEVER = "never"
    IF_SAFE = "only if carrying it out twice does no harm"
    ALWAYS = "always, as it was certainly not carried out"


class EnvServiceError(Exception):
    """Base of all failures of a client."""

    def __init__(
        self,
        message: str,
        *,
        method: str = "POST",
        url: str = "",
        instance_id: str | None = None,
        status: int | None = None,
        code: str | None = None,
        error_id: str | None = None,
        repeat: Repeat = Repeat.NEVER,
        retry_after_s: float | None = None,
    ) -> None:
        about = f" (instance {instance_id})" if instance_id else ""
        super().__init__(f"{method} {url}{about}: {message}")
        self.method = method
        self.url = url
        self.instance_id = instance_id
        self.status = status
        self.code = code
        self.error_id = error_id
        self.repeat = repeat
        self.retry_after_s = retry_after_s


class EnvUnavailable(EnvServiceError):
    """The service cannot be reached or is full, also after the retries. Try again later."""


class EnvRequestError(EnvServiceError):
    """The service refused the request (4xx); a retry cannot help."""


class EnvTimeout(EnvServiceError):
    """The call took too long, for the service (504) or for this client."""


class EnvCrashed(EnvServiceError):
    """The environment failed (500; `error_id` leads to the service's log), or the instance is gone. Start the episode
    again."""


TOKEN_VARIABLE = "ENV_SERVICE_TOKEN"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `tries` attempts within `budget_s` seconds; waits are uniform in 0..min(cap_s, base_s * 2**attempt)."""

    tries: int = 40
    base_s: float = 0.25
    cap_s: float = 8.0
    budget_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Call:
    """One request; `safe`: carrying it out twice does no harm."""

    route: str
    body: dict[str, Any]
    safe: bool
    instance_id: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """Return the JSON body; raise EnvRequestError if a value has no JSON form."""
        try:
            return orjson.dumps(
                {key: value for key, value in self.body.items() if value is not None}, option=orjson.OPT_SERIALIZE_NUMPY
            )
        except TypeError as error:
            raise EnvRequestError(
                f"the request is not JSON: {error}", url=self.route, instance_id=self.instance_id
            ) from error


def profile_call(env_type: str, split: str, params: dict[str, Any] | None) -> Call:
    return Call("/get_env_profile", {"env_type": env_type, "params": {**(params or {}), "split": split}}, safe=True)


def create_call(env_type: str, task_id: str, instance_id: str | None, params: dict[str, Any] | None) -> Call:
    # Id and key are chosen here: a retry finds the result of the first request.
    chosen = instance_id or uuid.uuid4().hex
    body = {"env_type": env_type, "task_id": task_id, "instance_id": chosen, "params": params or {}}
    return Call("/create", body, safe=True, instance_id=chosen, headers={"Idempotency-Key": uuid.uuid4().hex})


def step_call(
    instance_id: str, action: Mapping[str, Any], params: dict[str, Any] | None, step_index: int | None
) -> Call:
    body = {"instance_id": instance_id, "messages": dict(action), "params": params or {}, "step_index": step_index}
    return Call("/step", body, safe=step_index is not None, instance_id=instance_id)


def ask_call(route: str, instance_id: str, messages: Any, params: dict[str, Any] | None) -> Call:
    """Return the request for /evaluate or /get_info."""
    return Call(
        route,
        {"instance_id": instance_id, "messages": messages, "params": params or {}},
        safe=True,
        instance_id=instance_id,
    )


def release_call(instance_id: str) -> Call:
    return Call("/release", {"instance_id": instance_id}, safe=True, instance_id=instance_id)


def understand(
    call: Call, url: str, status: int, headers: Mapping[str, str], payload: bytes, created_here: bool
) -> dict[str, Any]:
    """Return the body of a success; raise the typed error of anything else.

    `created_here`: this client created the instance and has not released it, so "unknown" means lost.
    """
    try:
        body = orjson.loads(payload)
    except orjson.JSONDecodeError:
        body = None
    if status == 200 and isinstance(body, dict) and "data" in body:
        return body
    facts = body if isinstance(body, dict) else {}
    code = facts.get("code")
    detail = facts.get("detail") or payload[:300].decode("utf-8", "replace") or "(empty answer)"
    common: dict[str, Any] = {
        "url": url,
        "instance_id": call.instance_id,
        "status": status,
        "code": code,
        "error_id": facts.get("error_id"),
    }
    if code == "instance_lost" or (code == "unknown_instance" and created_here):
        raise EnvCrashed(f"the instance is gone: {detail}; create a new one and start the episode again", **common)
    if status in (502, 503):
        message = f"the service has no room or is not ready: {detail}; try later or raise --max-instances"
        repeat = Repeat.ALWAYS if status == 503 else Repeat.IF_SAFE
        raise EnvUnavailable(message, repeat=repeat, retry_after_s=_seconds(headers.get("Retry-After")), **common)
    if status == 504:
        raise EnvTimeout(f"{detail}; release the instance and create a new one", **common)
    if 400 <= status < 500:
        raise EnvRequestError(f"refused with {status}: {detail}", **common)
    raise EnvCrashed(f"failed with {status}: {detail}; release the instance and create a new one", **common)


def refused(call: Call, url: str, cause: Exception) -> EnvUnavailable:
    # The request was certainly not carried out.
    message = f"cannot connect: {cause}; is the service running there (python -m env_service serve)?"
    return EnvUnavailable(message, url=url, instance_id=call.instance_id, repeat=Repeat.ALWAYS)


def broken(call: Call, url: str, cause: Exception) -> EnvUnavailable:
    # The request may or may not have been carried out.
    message = f"the connection broke: {cause or type(cause).__name__}; the request may have been carried out"
    return EnvUnavailable(message, url=url, instance_id=call.instance_id, repeat=Repeat.IF_SAFE)


def too_slow(call: Call, url: str, timeout_s: float) -> EnvTimeout:
    message = f"no answer within {timeout_s:g} s; give the client a larger timeout_s or the environment less to do"
    return EnvTimeout(message, url=url, instance_id=call.instance_id, repeat=Repeat.IF_SAFE)


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, min(float(text), 60.0)) if text is not None else None
    except ValueError:
        return None
