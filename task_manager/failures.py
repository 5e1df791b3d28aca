"""What a failure is called where failures are counted."""

from __future__ import annotations

from agentevolver.llm.errors import (
    BudgetExceeded,
    LLMContextOverflow,
    LLMFiltered,
    LLMRefused,
    LLMReplyError,
    LLMTimeout,
    LLMUnavailable,
)
from env_service.protocol import EnvServiceError

_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (LLMContextOverflow, "overflow"),
    (LLMFiltered, "filtered"),
    (LLMRefused, "refused"),
    (LLMTimeout, "timeout"),
    (LLMUnavailable, "unavailable"),
    (LLMReplyError, "reply"),
    (BudgetExceeded, "budget"),
    (EnvServiceError, "environment"),
)


def kind_of(error: Exception) -> str:
    """Return the name of a failure's kind; `llm` where the model failed otherwise."""
    return next((name for kind, name in _KINDS if isinstance(error, kind)), "llm")
