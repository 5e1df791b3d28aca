"""vLLM's server behind the run's key: every route but those that only tell how it is.

vLLM's own `api_key` guards /v1, /v2, /inference and /cohere alone; the rest generates too (/invocations), tokenises,
and scales the engine.
"""

from __future__ import annotations

import functools
import hmac
from types import ModuleType
from typing import Any

from agentevolver.transport.run_key import derived

USE = "vLLM's server"
# What monitoring asks: whether it lives, and counters without text.
OPEN = ("/health", "/metrics")


def server_key() -> str:
    """Return the bearer token of the run's vLLM servers; raises RuntimeError outside of a run."""
    return derived(USE).hex()


class RequireKey:
    """ASGI middleware that answers 401 to requests without the run's bearer token, whatever their method and path."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._wanted = f"Bearer {server_key()}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on what may pass."""
        if scope["type"] == "lifespan" or scope["path"] in OPEN or self._is_authorised(scope["headers"]):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "this server asks for the key of its run"}'})

    def _is_authorised(self, headers: Any) -> bool:
        given = [value for name, value in headers if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._wanted)


def install(server: ModuleType) -> None:
    """Have `verl...vllm_async_server` serve vLLM's application behind the key."""
    original = server.build_app

    @functools.wraps(original)
    def build_app(args: Any, *rest: Any, **kwargs: Any) -> Any:
        args.middleware = [*args.middleware, f"{RequireKey.__module__}.{RequireKey.__name__}"]
        return original(args, *rest, **kwargs)

    server.build_app = build_app  # type: ignore[attr-defined]
