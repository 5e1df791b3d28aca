"""A reply that vLLM tells when it is whole, and in ids alone: its front end does nothing for each token.

verl takes the last of what vLLM streams. Not where replies are cut off by updates: verl knows by a reply's first token
that it may be aborted.
"""

from __future__ import annotations

from typing import Any


class _FinalOnly:
    """`RequestOutputKind.FINAL_ONLY` as soon as it is unpickled: who asks need not import vLLM, which takes seconds."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _final_only, ()


def _final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY


def whole(sampling_params: dict[str, Any]) -> dict[str, Any]:
    """Return a request's parameters with those that say so; text is needed where a stop string is looked for."""
    return {**sampling_params, "output_kind": _FinalOnly(), "detokenize": bool(sampling_params.get("stop"))}
