"""What can go wrong for a caller of an environment service, as four types.

`EnvUnavailable`: nobody answers, or the service has no room; the request was not carried out or may be repeated later.
`EnvRequestError`: the request itself is wrong; repeating it cannot help. `EnvTimeout`: an environment or the network
    took too long.
`EnvCrashed`: the environment failed or the instance is gone; start the episode again with a new instance.
"""

from __future__ import annotations

from enum import Enum


class Repeat(Enum):
    """Whether the same request may be sent again."""

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
    """The service cannot be reached or is full, also after the retries."""


class EnvRequestError(EnvServiceError):
    """The service refused the request (4xx)."""


class EnvTimeout(EnvServiceError):
    """The call took too long, for the service (504) or for this client."""


class EnvCrashed(EnvServiceError):
    """The environment failed (500; `error_id` leads to the service's log), or the instance does not exist any more."""
