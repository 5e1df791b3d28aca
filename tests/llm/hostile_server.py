"""A language model's server that behaves like a real one: competent (`minds`), and of any temper (`temperaments`).

    python tests/llm/hostile_server.py --temper mild [--port 0] [--seed 0] [--wrong 0.15] [--key KEY] [--log FILE]

serves `/v1/chat/completions` and `/counts` on loopback and prints its address. It reads the prompts of
the roles as any model does. Every request goes into the log as a line of JSON: what was asked as a hash, of whom, what
came of it, whether it was billed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sys
import time
import types
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # As a script: verl installs a package that is called `tests`, too.
    _tests = types.ModuleType("tests")
    _tests.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["tests"] = _tests

from tests.agentevolver.llm.faulty_server import FaultyServer, Request, Said
from tests.llm.dressing import Dressed, dress
from tests.llm.minds import Minds, NotUnderstood, Thought
from tests.llm.temperaments import Temper, read_temper

_HTML = b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>"
CHARS_PER_TOKEN = 4


@dataclass
class HostileServer:
    """The server's mind and memory.

    - `counts`: requests by what came of them (`answered`, `429`, `502`, ...), by `role/task of model`, and by way (`way
        fences`);
      `asked`: what was asked (`fingerprint`), each with how often.
    """

    temper: Temper = field(default_factory=Temper)
    minds: Minds = field(default_factory=Minds)
    seed: int = 0
    key: str | None = None
    log: Path | None = None
    counts: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    _window: deque[float] = field(default_factory=deque)

    def serve(self, port: int = 0) -> FaultyServer:
        """Return the server, to be entered."""
        return _Transport(self, port)

    def answer(self, request: Request) -> Said:
        """Return what is done to a request."""
        if not request.path.endswith("/chat/completions"):
            return self._beside(request)
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return _refused(401, "Incorrect API key provided.", "invalid_api_key")
        body = request.body
        asked = fingerprint(body)
        times = self.asked[asked]
        self.asked[asked] += 1
        said, what, thought = self._said(body, asked, times)
        task = thought.task if thought is not None else _task(body)
        self.counts[what] += 1
        self.counts[f"{task} of {body.get('model')}"] += 1
        self._note(asked, task, what, said)
        return said

    def _said(self, body: dict[str, Any], asked: str, times: int) -> tuple[Said, str, Thought | None]:
        temper, rng = self.temper, random.Random(f"{self.seed}-{asked}-{times}")
        if (wait := self._over_limit()) is not None:
            headers = {"retry-after": f"{wait:.2f}"} if temper.retry_after else {}
            said = _refused(429, f"Rate limit reached: limit {temper.requests} requests.", "rate_limit_exceeded")
            said.headers = headers
            return said, "429", None
        least, most = temper.latency_s
        delay = rng.uniform(least, most)
        if rng.random() < temper.outages:
            return self._outage(rng, delay), "502", None
        prompt_tokens = sum(len(str(m.get("content") or "")) for m in body["messages"]) // CHARS_PER_TOKEN + 1
        # A filter looks at what is asked, which does not change, and at what is said, which does.
        if (
            random.Random(f"{self.seed}-filter-{fingerprint({'messages': body['messages']})}").random()
            < temper.filtered / 2
        ):
            said = _refused(
                400,
                "The response was filtered due to the prompt triggering content management policy.",
                "content_filter",
            )
            return said, "filtered", None
        if rng.random() < temper.filtered / 2:
            return self._completed(body, Dressed("", "content_filter"), prompt_tokens, delay), "filtered", None
        try:
            thought = self.minds.answer(body["messages"], random.Random(f"{self.seed}-mind-{asked}-{times}"))
        except NotUnderstood as error:
            return _refused(400, str(error), "invalid_request_error"), "not understood", None
        max_tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 4096)
        dressed = dress(thought.answer, thought.call, temper, rng, max_tokens)
        self.counts.update(f"way {way}" for way in dressed.ways)
        return self._completed(body, dressed, prompt_tokens, delay), "answered", thought

    def _over_limit(self) -> float | None:
        """Return how long the window stays full, None if there is room; refused requests take none, as with a token
        bucket."""
        if not self.temper.requests:
            return None
        now = time.monotonic()
        while self._window and self._window[0] <= now - self.temper.window_s:
            self._window.popleft()
        if len(self._window) >= self.temper.requests:
            return self._window[0] + self.temper.window_s - now
        self._window.append(now)
        return None

    def _outage(self, rng: random.Random, delay: float) -> Said:
        kind = rng.choice(("502", "html", "reset"))
        if kind == "reset":
            return Said(manner="reset", delay_s=delay)
        return Said(
            status=502 if kind == "502" else 200, body=_HTML, headers={"content-type": "text/html"}, delay_s=delay
        )

    def _completed(self, body: dict[str, Any], dressed: Dressed, prompt_tokens: int, delay: float) -> Said:
        message: dict[str, Any] = {"role": "assistant", "content": dressed.content}
        if dressed.reasoning:
            message["reasoning_content"] = dressed.reasoning
        if dressed.calls:
            message["tool_calls"] = [
                {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for i, (name, arguments) in enumerate(dressed.calls)
            ]
        text = (dressed.content or "") + dressed.reasoning + "".join(json.dumps(call) for call in dressed.calls)
        said = max(1, len(text) // CHARS_PER_TOKEN)
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += said
        data = {
            "id": f"chatcmpl-{sum(self.asked.values())}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model"),
            "choices": [{"index": 0, "message": message, "finish_reason": dressed.finish_reason}],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": said, "total_tokens": prompt_tokens + said},
        }
        return Said(body=json.dumps(data).encode("utf-8", "replace"), delay_s=delay)

    def _beside(self, request: Request) -> Said:
        if request.path.endswith("/counts"):
            return _json(
                {**self.counts, "prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
            )
        return _refused(404, f"there is nothing at {request.path}", "not_found")

    def _note(self, asked: str, task: str, what: str, said: Said) -> None:
        if self.log is not None:
            # Everything that comes with a usage is paid for, a filtered reply included.
            billed = said.status == 200 and said.body is not None and b'"usage"' in said.body
            with self.log.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({"asked": asked, "task": task, "what": what, "billed": billed, "time": time.time()})
                    + "\n"
                )


class _Transport(FaultyServer):
    """Keeps no requests: a run sends thousands."""

    def __init__(self, server: HostileServer, port: int) -> None:
        super().__init__([], port=port)
        self._mind = server

    def said(self, request: Request) -> Said:
        return self._mind.answer(request)


def fingerprint(body: dict[str, Any]) -> str:
    """Return a hash of what is asked, the model and the sampling included."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def paid_twice(log: Path) -> Counter[str]:
    """Return what was billed more than once, each with how often beyond the first time."""
    lines: Iterable[dict[str, Any]] = map(json.loads, log.read_text().splitlines())
    counts = Counter(line["asked"] for line in lines if line["billed"])
    return Counter({asked: count - 1 for asked, count in counts.items() if count > 1})


def _task(body: dict[str, Any]) -> str:
    first = str(body["messages"][0].get("content") or "").splitlines()
    return first[0].removeprefix("role: ") if first else "?"


def _refused(status: int, text: str, code: str) -> Said:
    kind = "invalid_request_error" if status == 400 else "requests"
    return Said(
        status=status, body=json.dumps({"error": {"message": text, "type": kind, "param": None, "code": code}}).encode()
    )


def _json(data: dict[str, Any]) -> Said:
    return Said(body=json.dumps(data).encode())


async def _run(server: HostileServer, port: int) -> None:
    async with server.serve(port) as transport:
        print(transport.url.removesuffix("/v1"), flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser("python tests/llm/hostile_server.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--temper", type=read_temper, default="calm", help="name, names joined by +, key=value joined by +"
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--wrong", type=float, default=0.15, help="share of proposed tasks and experiences that are wrong on purpose"
    )
    parser.add_argument("--key", help="the API key that is wanted; none if left out")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    minds = Minds(wrong=options.wrong, seed=options.seed)
    server = HostileServer(options.temper, minds, options.seed, options.key, options.log)
    try:
        asyncio.run(_run(server, options.port))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
