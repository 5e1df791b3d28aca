"""Failures of the service as HTTP sees them: a status, a stable code and one sentence.

Codes are part of the interface. 4xx: the caller can correct the request; 503: come back later; 500: an environment
failed, and the log holds the details under the error id.
"""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """Base of all errors that a route may answer."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"

    def __init__(self, detail: str, *, error_id: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.error_id = error_id
        self.retry_after_s = retry_after_s


class BadRequest(ServiceError):
    """A missing field, an unknown split, a ValueError of the environment."""

    status = 400
    code = "bad_request"


class UnknownInstance(ServiceError):
    """No instance has this id: never created, released, expired, or lost in a restart of the service."""

    status = 400
    code = "unknown_instance"


class InstanceExists(ServiceError):
    """Another create took this id."""

    status = 409
    code = "instance_exists"


class StepOutOfOrder(ServiceError):
    """A step number is neither the last one nor the next one."""

    status = 409
    code = "step_out_of_order"


class InvalidBody(ServiceError):
    """The body is not JSON, or a field has a wrong type."""

    status = 422
    code = "invalid_body"


class EnvironmentFailed(ServiceError):
    """The environment raised, or returned something outside the contract."""

    status = 500
    code = "env_error"


class ProcessEnded(EnvironmentFailed):
    """The process ended during a call without an open instance: a create, or the list of tasks."""


class InstanceLost(ServiceError):
    """The process of the instance is gone; create a new instance."""

    status = 500
    code = "instance_lost"


class Unavailable(ServiceError):
    """The service is starting or stopping, or has no host for this environment now."""

    status = 503
    code = "unavailable"


class Full(ServiceError):
    """The maximum number of instances is open."""

    status = 503
    code = "full"


class CallTimeout(ServiceError):
    """The environment exceeded its `call_timeout_s`; the instance is given up."""

    status = 504
    code = "timeout"
