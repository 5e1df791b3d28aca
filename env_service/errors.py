"""Failures of the service as HTTP sees them: a status, a stable code, one sentence, never a traceback.

Codes are part of the interface: clients decide by them what to do. 4xx means that the caller can put it right, 503 that
it can come back later, 500 that an environment failed and that the log holds the details under the error id.
"""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """Base of everything that a route may answer instead of data."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"

    def __init__(self, detail: str, *, error_id: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.error_id = error_id
        self.retry_after_s = retry_after_s


class BadRequest(ServiceError):
    """The caller asked for something that cannot be:
    a missing field, an unknown split, a ValueError of the environment."""

    status = 400
    code = "bad_request"


class UnknownInstance(ServiceError):
    """No instance has this id: never created, released, expired, or created by a service that has since restarted."""

    status = 400
    code = "unknown_instance"


class InstanceExists(ServiceError):
    """Another create already took this id."""

    status = 409
    code = "instance_exists"


class StepOutOfOrder(ServiceError):
    """A step number is neither the last one nor the next one."""

    status = 409
    code = "step_out_of_order"


class InvalidBody(ServiceError):
    """The body is not JSON or its fields have wrong types."""

    status = 422
    code = "invalid_body"


class EnvironmentFailed(ServiceError):
    """The environment raised or returned something outside the contract."""

    status = 500
    code = "env_error"


class ProcessEnded(EnvironmentFailed):
    """The process ended during a call that belongs to no open instance: a create, or the list of tasks."""


class InstanceLost(ServiceError):
    """The process of the instance is gone; create a new one."""

    status = 500
    code = "instance_lost"


class Unavailable(ServiceError):
    """The service is starting, stopping or has no host for this environment at the moment."""

    status = 503
    code = "unavailable"


class Full(ServiceError):
    """As many instances as allowed are open."""

    status = 503
    code = "full"


class CallTimeout(ServiceError):
    """The environment took longer than its `call_timeout_s`; the instance is given up."""

    status = 504
    code = "timeout"
