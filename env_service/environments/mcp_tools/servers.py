"""The MCP servers of one instance: started in parallel, called from any thread, stopped together.

One thread runs one event loop, in which one task opens, keeps and closes each connection. A tool's error, a refused
call and a time-out are a `ToolResult` with `is_error`; a server that dies or breaks the protocol raises ServerError,
and the instance is lost. Needs the MCP SDK 2 (`mcp` >= 2.3).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO, TypeVar

from agentevolver.utils.web.access import is_local
from env_service.environments.mcp_tools.config import HttpServer, StdioServer

try:
    import httpx2
    from mcp import Client, MCPError, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp_types import (
        CONNECTION_CLOSED,
        REQUEST_TIMEOUT,
        CallToolResult,
        ListToolsRequest,
        ListToolsResult,
        TextContent,
    )
    from mcp_types import Tool as ToolDescription
    from pydantic import ValidationError
except ImportError as error:
    raise ImportError(f"the mcp environment needs the MCP SDK 2 (pip install 'mcp>=2.3,<3'); {error}") from error

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 10.0
_GRACE_S = 5.0
_ALIVE_TIMEOUT_S = 5.0
_MOST_LOG = 2000
_MOST_PAGES = 100

Target = Any
"""What `mcp.Client` can be given: a transport, a URL, a server object in this process."""
Connect = Callable[[contextlib.AsyncExitStack, TextIO], "Target"]
"""Opens the way to a server; what a process of it writes to its standard error belongs into the file."""

T = TypeVar("T")


class ServerError(RuntimeError):
    """An MCP server could not be started, died or broke the protocol."""


@dataclass(frozen=True)
class McpTool:
    name: str
    server: str
    name_there: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True)
class ToolResult:
    text: str
    is_error: bool
    data: Any = None


@dataclass
class _Link:
    name: str
    connect: Connect
    ready: asyncio.Future[None]
    client: Client | None = None
    tools: list[ToolDescription] = field(default_factory=list)
    log: TextIO = field(default_factory=lambda: tempfile.TemporaryFile("w", encoding="utf-8"))  # noqa: SIM115  closed with the servers

    def last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):  # closed already
            number = self.log.fileno()
            end = os.pread(number, _MOST_LOG, max(0, os.fstat(number).st_size - _MOST_LOG))
            if text := end.decode("utf-8", "replace").strip():
                return f"; it last wrote: {text}"
        return ""


def connector(server: StdioServer | HttpServer) -> Connect:

    def connect(stack: contextlib.AsyncExitStack, errors: TextIO) -> Target:
        if isinstance(server, HttpServer):
            http = httpx2.AsyncClient(
                headers=server.headers,
                timeout=httpx2.Timeout(30.0, read=300.0),
                trust_env=not is_local(server.url),
            )
            stack.push_async_exit(http)
            return streamable_http_client(server.url, http_client=http)
        parameters = StdioServerParameters(command=server.command, args=server.args, env=server.env, cwd=server.cwd)
        return stdio_client(parameters, errlog=errors)

    return connect


def _flat(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


class Servers:
    def __init__(self, connects: Mapping[str, Connect], start_timeout_s: float) -> None:
        """Begin to start the servers, without waiting."""
        self._timeout = start_timeout_s
        self._connects = dict(connects)
        self._lost: ServerError | None = None
        self._links: dict[str, _Link] = {}
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main_task: asyncio.Task[None] | None = None
        self._stop: asyncio.Event | None = None
        self.tools: dict[str, McpTool] = {}
        self._thread = threading.Thread(target=self._run, name="mcp-servers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except (
            Exception,
            asyncio.CancelledError,
        ) as error:  # this thread's boundary: whatever ends the loop belongs to the starter
            self._fail(ServerError(f"the MCP servers ended unexpectedly: {_flat(error)}"))
        finally:
            self._fail(ServerError("the MCP servers were stopped"))

    def _fail(self, error: ServerError) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self._started.set_exception(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main_task = asyncio.current_task()
        self._stop = asyncio.Event()
        for name, connect in self._connects.items():
            self._links[name] = _Link(name, connect, self._loop.create_future())
        keepers = [asyncio.create_task(self._keep(link), name=f"mcp-{link.name}") for link in self._links.values()]
        standing = asyncio.gather(*(link.ready for link in self._links.values()))
        try:
            await asyncio.wait_for(standing, self._timeout)
            self.tools = _named(self._links)
            self._started.set_result(None)
            await self._stop.wait()
        except ServerError as error:
            self._fail(error)
        except TimeoutError:
            late = [repr(link.name) + link.last_words() for link in self._links.values() if link.client is None]
            self._fail(ServerError(f"MCP servers did not start within {self._timeout:g} s: {', '.join(late)}"))
        finally:
            self._stop.set()
            if not self._is_standing():
                for keeper in keepers:
                    keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    def _is_standing(self) -> bool:
        return self._started.done() and self._started.exception() is None

    async def _keep(self, link: _Link) -> None:
        """Open a connection, list its tools, hold it until the stop and close it: the SDK wants one task for all."""
        assert self._stop is not None
        try:
            async with contextlib.AsyncExitStack() as stack:
                client = Client(link.connect(stack, link.log), read_timeout_seconds=self._timeout)
                await stack.enter_async_context(client)
                link.tools = await _all_tools(client)
                link.client = client
                if not link.ready.done():
                    link.ready.set_result(None)
                await self._stop.wait()
        except (
            Exception
        ) as error:  # the boundary to the SDK and to the operating system: anything here means "no server"
            if not link.ready.done():
                link.ready.set_exception(
                    ServerError(f"MCP server {link.name!r} did not start: {_flat(error)}{link.last_words()}")
                )

    def wait_started(self) -> None:
        """Wait for all servers and their `tools`; raises ServerError."""
        try:
            self._started.result(self._timeout + _GRACE_S)
        except concurrent.futures.TimeoutError as error:
            raise ServerError(f"MCP servers did not start within {self._timeout:g} s") from error

    def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> ToolResult:
        """Call a tool and wait at most about `timeout_s` seconds; raises ServerError if its server is gone."""
        self.wait_started()
        tool = self.tools[name]
        link = self._links[tool.server]
        assert link.client is not None
        began = time.monotonic()
        try:
            return _result(
                self._asked(
                    link, link.client.call_tool(tool.name_there, arguments, read_timeout_seconds=timeout_s), timeout_s
                )
            )
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                return ToolResult(f"The tool {name!r} did not answer within {timeout_s:g} s.", is_error=True)
            return ToolResult(f"The server refused the call: {error.message}", is_error=True)
        except concurrent.futures.TimeoutError:
            return ToolResult(
                f"The tool {name!r} did not answer within {time.monotonic() - began:.0f} s.", is_error=True
            )

    def check_alive(self) -> None:
        """Check that every server answers, be it with a refusal or late; raises ServerError if one is gone."""
        self.wait_started()
        for link in self._links.values():
            assert link.client is not None
            question = link.client.session.send_request(
                ListToolsRequest(), ListToolsResult, request_read_timeout_seconds=_ALIVE_TIMEOUT_S
            )
            with contextlib.suppress(
                MCPError, concurrent.futures.TimeoutError
            ):  # it refuses, or is busy with a call that took too long
                self._asked(link, question, _ALIVE_TIMEOUT_S)

    def _asked(self, link: _Link, question: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return a server's answer. Raises MCPError or TimeoutError if the server is alive, ServerError (also later) if
        not."""
        if self._lost is not None:
            question.close()
            raise ServerError(f"this instance has lost a server: {self._lost}")
        try:
            return self._answer(link, question, timeout_s)
        except ServerError as error:
            self._lost = error
            raise

    def _answer(self, link: _Link, question: Coroutine[Any, Any, T], timeout_s: float) -> T:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(question, self._loop)
        try:
            return future.result(timeout_s + _GRACE_S)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise ServerError(f"MCP server {link.name!r} is gone ({error}){link.last_words()}") from error
            raise
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise
        except ValidationError as error:
            raise ServerError(
                f"MCP server {link.name!r} answered with a malformed result: {error.errors()[0]['msg']}"
            ) from error
        except (OSError, httpx2.HTTPError, concurrent.futures.CancelledError) as error:
            raise ServerError(
                f"MCP server {link.name!r} cannot be reached: {_flat(error)}{link.last_words()}"
            ) from error

    def close(self) -> None:
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                loop.call_soon_threadsafe(stop.set)
                if not self._started.done() and self._main_task is not None:
                    loop.call_soon_threadsafe(self._main_task.cancel)
        self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            logger.error("the MCP servers %s did not stop within %g s", ", ".join(self._connects), _STOP_TIMEOUT_S)
        for link in self._links.values():
            link.log.close()


async def _all_tools(client: Client) -> list[ToolDescription]:
    tools: list[ToolDescription] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            return tools
    raise ServerError(f"the tool list has more than {_MOST_PAGES} pages")


def _named(links: Mapping[str, _Link]) -> dict[str, McpTool]:
    names = [tool.name for link in links.values() for tool in link.tools]
    tools: dict[str, McpTool] = {}
    for link in links.values():
        for tool in link.tools:
            name = tool.name if names.count(tool.name) == 1 else f"{link.name}__{tool.name}"
            if name in tools:
                raise ServerError(f"two tools would be called {name!r}; rename server {link.name!r}")
            tools[name] = McpTool(name, link.name, tool.name, tool.description or "", tool.input_schema)
    return tools


def _result(result: CallToolResult) -> ToolResult:
    parts = [item.text if isinstance(item, TextContent) else f"({item.type} left out)" for item in result.content]
    data = result.structured_content
    if data is not None and not any(isinstance(item, TextContent) for item in result.content):
        parts.append(json.dumps(data))
    text = "\n".join(parts)
    if data is None:
        with contextlib.suppress(ValueError, RecursionError):
            data = json.loads(text)
    return ToolResult(text or json.dumps(data), bool(result.is_error), data)
