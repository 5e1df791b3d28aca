"""A headless Chromium, driven over its DevTools protocol: enough to open a page, look at it, press keys and take a
picture."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from agentevolver.view.app import create_app, page_access
from agentevolver.view.experiment import Experiment

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
START_S = 60.0
WAIT_S = 30.0
READY = (
    "!document.querySelector('#main').innerText.startsWith('Loading') && "
    "document.querySelector('#main').children.length > 0"
)


def find_browser() -> str | None:
    """The path of a browser; `VIEW_BROWSER` names one that is not on PATH."""
    named = os.environ.get("VIEW_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())
        self.problems: list[str] = []
        self.requests: list[str] = []

    async def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=url)

    async def go(self, fragment: str) -> None:
        """Another view of the same page."""
        await self.run(f"location.hash = {json.dumps(fragment)}")

    async def run(self, code: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{code}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def until(self, code: str) -> None:
        """Wait until an expression is true."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while True:
            with suppress(AssertionError):
                if await self.run(f"!!({code})"):
                    return
            if asyncio.get_running_loop().time() > deadline:
                shown = await self.run("document.body.innerText")
                raise AssertionError(f"never true: {code}\n{self.problems}\nthe page says:\n{shown}")
            await asyncio.sleep(0.1)

    async def text(self) -> str:
        return str(await self.run("document.body.innerText"))

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(self._waiting[number], WAIT_S)

    async def close(self) -> None:
        self._reader.cancel()
        await self._socket.close()

    async def _read(self) -> None:
        async for message in self._socket:
            found = json.loads(message.data)
            if "id" in found:
                future = self._waiting.pop(found["id"])
                if "error" in found:
                    future.set_exception(AssertionError(str(found["error"])))
                else:
                    future.set_result(found["result"])
            elif found["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(found["params"]["exceptionDetails"]))
            elif found["method"] == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
                self.problems.append(str(found["params"]["entry"]))
            elif found["method"] == "Network.requestWillBeSent":
                self.requests.append(found["params"]["request"]["url"])


@asynccontextmanager
async def browser(path: str) -> AsyncIterator[Page]:
    """Start a browser with a profile of its own and give its one tab."""
    with tempfile.TemporaryDirectory(prefix="view-browser-", ignore_cleanup_errors=True) as profile:
        # As root, as containers are, Chromium only starts without its sandbox; it opens nothing but our own page.
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
        ]
        options += [
            "--disable-background-networking",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        process = await asyncio.create_subprocess_exec(
            path, *options, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True
        )
        try:
            port = await asyncio.wait_for(_port(process), START_S)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    target = next(tab for tab in await answer.json() if tab["type"] == "page")
                page = Page(await session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0))
                try:
                    yield page
                finally:
                    await page.close()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async for line in process.stderr:
        if match := re.search(rb"DevTools listening on ws://127\.0\.0\.1:(\d+)/", line):
            return int(match[1])
    raise AssertionError(f"the browser ended with {await process.wait()}")


@contextmanager
def serving(*runs: Path, folders: Sequence[Path] = ()) -> Iterator[str]:
    """The page of some runs, and of those that begin in `folders`, in a thread, and its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        app = create_app([Experiment(run) for run in runs], page_access("127.0.0.1", "t0ken"), folders)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


async def show(page: Page, view: str) -> str:
    """Go to a view and wait for it; returns its text."""
    await page.go(f"#/{view}")
    # The old view is gone once the frame has taken note of the new one.
    await asyncio.sleep(0.1)
    await page.until(READY)
    return await page.text()
