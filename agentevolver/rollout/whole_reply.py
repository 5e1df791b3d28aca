"""Requests for a whole reply as ids: vLLM's front end then does no work for each token."""

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
    # verl uses only the last streamed output. Not for replies that updates may abort: verl learns from the first token
    # that a reply can be aborted. Stop strings need text, hence `detokenize`.
    return {**sampling_params, "output_kind": _FinalOnly(), "detokenize": bool(sampling_params.get("stop"))}
