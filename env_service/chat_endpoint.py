"""A chat model behind OpenAI's API, called by an environment: it plays a user or another seat.

Calls block, so this is for processes that hold one episode. The endpoint comes from variables of the service, never
from a request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

_TRIES = 3
_TIMEOUT_S = 60.0


class EndpointFailed(RuntimeError):
    """No reply after all tries; the message says why and holds no key."""


def complete(url: str, key: str | None, body: Mapping[str, Any], timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    """Return the message of a chat completion.

    Args:
        url: the endpoint's URL, up to `/v1`.
        key: None if the endpoint needs none.
        body: `model`, `messages` and other fields.
        timeout_s: of each try.

    Raises:
        EndpointFailed: refused, or three tries failed.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # Reading the certificates of authorities takes 25 ms of each call, and plain HTTP needs none.
    verify = urlsplit(url).scheme != "http"
    reason = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(2.0 ** (attempt - 1))
        try:
            response = httpx.post(
                f"{url}/chat/completions",
                json=dict(body),
                headers=headers,
                timeout=timeout_s,
                verify=verify,
            )
            response.raise_for_status()
            message = response.json()["choices"][0]["message"]
            if isinstance(message, dict):
                return message
            reason = "its answer holds no message"
        except httpx.HTTPStatusError as error:
            reason = f"HTTP {error.response.status_code}"
            if error.response.status_code < 500 and error.response.status_code not in (408, 429):
                break
        except httpx.HTTPError as error:
            reason = f"{type(error).__name__}: {error}"
        except (ValueError, KeyError, IndexError, TypeError) as error:
            reason = f"its answer is no chat completion ({type(error).__name__})"
    raise EndpointFailed(reason)
