"""Replies that vLLM returns once, whole and as ids: its front end then does nothing for each token.

verl takes the last of what vLLM streams. Not for replies that updates cut off: verl learns from the first token that a
reply may be aborted.
"""

from __future__ import annotations

from typing import Any


class _FinalOnly:
    """Unpickles as `RequestOutputKind.FINAL_ONLY`, so that callers need not import vLLM, which takes seconds."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _final_only, ()


def _final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY


def whole(sampling_params: dict[str, Any]) -> dict[str, Any]:
    """Return a request's parameters with the request for a whole reply; stop strings need text."""
    return {**sampling_params, "output_kind": _FinalOnly(), "detokenize": bool(sampling_params.get("stop"))}
