"""Language models that help in training. Each role is served by an OpenAI-compatible endpoint; see docs/llm.md."""

from typing import TYPE_CHECKING, Any

from agentevolver.llm.errors import (
    BudgetExceeded,
    LLMContextOverflow,
    LLMError,
    LLMFiltered,
    LLMRefused,
    LLMReply,
    LLMReplyError,
    LLMTimeout,
    LLMToolCall,
    LLMUnavailable,
    ServedModel,
)
from agentevolver.llm.settings import BudgetSettings, EndpointSettings, LLMSettings, Role
from agentevolver.llm.store import Ledger, LedgerError, Usage

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM

__all__ = [
    "LLM",
    "BudgetExceeded",
    "BudgetSettings",
    "EndpointSettings",
    "LLMContextOverflow",
    "LLMError",
    "LLMFiltered",
    "LLMRefused",
    "LLMReply",
    "LLMReplyError",
    "LLMSettings",
    "LLMTimeout",
    "LLMToolCall",
    "LLMUnavailable",
    "Ledger",
    "LedgerError",
    "Role",
    "ServedModel",
    "Usage",
]


# The client's libraries take seconds to import, and checking a configuration does not need them.
def __getattr__(name: str) -> Any:
    if name == "LLM":
        from agentevolver.llm.client import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
