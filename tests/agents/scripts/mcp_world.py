"""The world as an MCP server on standard input and output, for agents that are given MCP servers. It runs in the
repository's own Python."""

import json

from mcp.server.mcpserver import MCPServer
from world import episodes

server = MCPServer("world")


@server.tool()
def call(name: str, arguments: str) -> str:
    """Make one call in the office: its name, and its arguments as JSON."""
    return episodes()[0].call(name, json.loads(arguments))


if __name__ == "__main__":
    server.run("stdio")
