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

    def __init_subclass__(cls, *, status: int | None = None, code: str | None = None) -> None:
        super().__init_subclass__()
        cls.status, cls.code = status or cls.status, code or cls.code

    def __init__(self, detail: str, *, error_id: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.error_id = error_id
        self.retry_after_s = retry_after_s


class BadRequest(ServiceError, status=400, code="bad_request"):
    """A missing field, an unknown split, a ValueError of the environment."""


class UnknownInstance(ServiceError, status=400, code="unknown_instance"):
    """No instance has this id: never created, released, expired, or lost in a restart of the service."""


class InstanceExists(ServiceError, status=409, code="instance_exists"):
    """Another create took this id."""


class StepOutOfOrder(ServiceError, status=409, code="step_out_of_order"):
    """A step number is neither the last one nor the next one."""


class InvalidBody(ServiceError, status=422, code="invalid_body"):
    """The body is not JSON, or a field has a wrong type."""


class EnvironmentFailed(ServiceError, status=500, code="env_error"):
    """The environment raised, or returned something outside the contract."""


class ProcessEnded(EnvironmentFailed):
    """The process ended during a call without an open instance: a create, or the list of tasks."""


class InstanceLost(ServiceError, status=500, code="instance_lost"):
    """The process of the instance is gone; create a new instance."""


class Unavailable(ServiceError, status=503, code="unavailable"):
    """The service is starting or stopping, or has no host for this environment now."""


class Full(ServiceError, status=503, code="full"):
    """The maximum number of instances is open."""


class CallTimeout(ServiceError, status=504, code="timeout"):
    """The environment exceeded its `call_timeout_s`; the instance is given up."""
