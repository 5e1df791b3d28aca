"""MCP servers that misbehave on request, over stdio or (`http PORT`) streamable HTTP."""

from __future__ import annotations

import os
import sys
import time

if sys.argv[1:] == ["silent"]:
    time.sleep(600)
if sys.argv[1:] == ["broken"]:
    sys.exit("no licence file found")
if sys.argv[1:] == ["loud"]:
    print("my key is 42", file=sys.stderr, flush=True)
if sys.argv[1:] == ["stubborn"]:
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)

from mcp.server.mcpserver import MCPServer

server = MCPServer("odd")


@server.tool()
def environment() -> dict[str, str]:
    """The variables of this process."""
    return dict(os.environ)


@server.tool()
def folder() -> str:
    """The working folder."""
    return os.getcwd()


@server.tool()
def pid() -> int:
    """The process id."""
    return os.getpid()


@server.tool()
def sleep(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "slept"


@server.tool()
def die() -> str:
    """End the process in the middle of a call."""
    print("I must go", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def flood() -> str:
    """A long text."""
    return "x" * 1_000_000


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run(transport="stdio")
        if sys.argv[1:] == ["stubborn"]:
            time.sleep(600)
