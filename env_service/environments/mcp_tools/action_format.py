"""The action format of MCP tools: function calls; a message `Answer: ...` ends the episode."""

from __future__ import annotations

from env_service.action_format import ToolCallFormat


class McpFormat(ToolCallFormat):
    def closing(self, answer: str | None) -> str | None:
        return f"Answer: {answer}" if answer else super().closing(answer)


Format = McpFormat
