"""Tool formats: how a model writes calls, by name. A format takes a reply apart; it never renders one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentevolver.tools.schema import Parsed, ToolSpec


class ToolFormat(ABC):
    """Reads calls out of sampled ids. Stateless: one object serves all episodes of a process."""

    name: str

    @abstractmethod
    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        """Return a reply's text, calls and problems; raises nothing, whatever a model may write."""
