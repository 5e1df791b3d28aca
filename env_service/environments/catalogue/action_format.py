"""The action format of a catalogue: function calls; a message `Answer: ...` ends the episode."""

from __future__ import annotations

from env_service.environments.mcp_tools.action_format import McpFormat as McpFormat


class CatalogueFormat(McpFormat):
    exploration = (4, 16)


Format = CatalogueFormat
