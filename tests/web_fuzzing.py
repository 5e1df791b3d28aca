"""A fuzz of the four servers: so many requests to their applications, and so many over sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentevolver.llm.embeddings import HashingEncoder
from experience_manager.experience import Experience
from experience_manager.pool import Pool
from experience_manager.store import Store
from tests.four_servers import TOKEN, Served, four_apps, four_sockets
from tests.web_fuzz import Drawn, Fuzzer, Operation
from tests.web_values import environment_values, experience_values, page_values, teacher_values

# Of how many requests a server gets: the two with many routes get more.
SHARES = {"environment": 0.3, "experience": 0.15, "page": 0.4, "teacher": 0.15}
_KEPT_OPEN, _EVERY = 40, 50


def fuzzers(apps: dict[str, Served], open_ids: list[str], seed: int) -> dict[str, Fuzzer]:
    """Return a fuzzer for each server."""
    values: dict[str, dict[str, Any]] = {
        "environment": environment_values(open_ids),
        "experience": experience_values(),
        "page": page_values(),
        "teacher": teacher_values(),
    }
    return {name: Fuzzer(apps[name], values[name], seed) for name in SHARES}


def unserved(fuzzer: Fuzzer) -> set[str]:
    """Return the operations that were never answered with 2xx."""
    return {name for name, count in fuzzer.served_times().items() if not count}


async def fuzz_applications(folder: Path, requests: int, seed: int) -> list[Fuzzer]:
    """Send requests to the four applications; returns the fuzzers with their counts, raises Broken at the first answer
    that may not be."""
    open_ids: list[str] = []
    async with four_apps(folder) as apps:
        made = fuzzers(apps, open_ids, seed)
        shown = experiences_of(folder)
        for name, fuzzer in made.items():
            for number in range(round(requests * SHARES[name])):
                if name == "environment" and number % _EVERY == 0:
                    await _tidy(fuzzer, open_ids)
                drawn = fuzzer.draw()
                answered = await fuzzer.send(drawn)
                fuzzer.judge(drawn, answered)
                if name == "page" and drawn.method == "DELETE" and answered.status == 200:
                    shown()
    return list(made.values())


def fuzz_sockets(folder: Path, requests: int, seed: int) -> list[Fuzzer]:
    """The same over sockets, with some heads torn."""
    import asyncio

    async def made() -> dict[str, Fuzzer]:
        async with four_apps(folder / "schemas") as apps:
            return fuzzers(apps, [], seed)

    known = asyncio.run(made())
    with four_sockets(folder / "served", timeout_keep_alive=1) as ports:
        for name, fuzzer in known.items():
            for _ in range(round(requests * SHARES[name])):
                drawn = fuzzer.draw()
                fuzzer.judge(drawn, fuzzer.send_bytes(drawn, ports[name]), torn=True)
    return list(known.values())


async def _tidy(fuzzer: Fuzzer, open_ids: list[str]) -> None:
    """Release all instances but a few, and list those."""
    headers = (
        (b"host", b"127.0.0.1"),
        (b"authorization", f"Bearer {TOKEN}".encode()),
        (b"content-type", b"application/json"),
    )

    async def ask(method: str, path: str, body: bytes = b"") -> dict[str, Any]:
        length = (b"content-length", b"%d" % len(body))
        drawn = Drawn(Operation("environment", method, path), method, path, (*headers, length), body, True)
        found: dict[str, Any] = json.loads((await fuzzer.send(drawn)).body)
        return found

    known = [instance["instance_id"] for instance in (await ask("GET", "/instances"))["data"]]
    for instance_id in known[:-_KEPT_OPEN]:
        await ask("POST", "/release", json.dumps({"instance_id": instance_id}).encode())
    for number in range(_KEPT_OPEN // 2 - len(known)):
        await ask("POST", "/create", json.dumps({"task_id": "note_del.k0.0", "instance_id": f"kept-{number}"}).encode())
    open_ids[:] = known[-_KEPT_OPEN:] or [f"kept-{number}" for number in range(_KEPT_OPEN // 2)]


def experiences_of(folder: Path) -> Callable[[], None]:
    """Return what puts back the experiences that the page shows."""

    def put() -> None:
        with Store(folder / "pocket" / "demo" / "experience.sqlite") as store:
            Pool(store, HashingEncoder()).put(
                [Experience("a note", "Read the doc.", id=name) for name in ("e1", "e2", "e3")]
            )

    return put
