"""CPU a turn and memory an episode of the gateway, beside a plain vLLM OpenAI server on the same mock engine.

    python -m benchmarks.gateway [--episodes 32] [--rounds 3] [--clients 1 32] [--kinds gateway vllm]

Every server is a process of its own, whose CPU (user and system) and resident size are read from /proc; the clients are
in this one. An episode is 20 turns with a tool call each: 100 sampled tokens a turn, 5,500 tokens at its end, every
request with the whole conversation, as agents send it. The engine answers at once with tokens that were made before, so
that what is counted is HTTP, JSON, the chat template, tokenising, detokenising and reading of calls. vLLM's is its own
application (`vllm.entrypoints.openai.api_server`) with a client of an engine that says the same; vLLM's real one
detokenises token by token, this one at once, which favours vLLM.

Limits of it: one vocabulary (32,000 BPE tokens made of Python's standard library), one chat template (hermes calls), on
loopback; nothing is said of an engine's own time. On a machine that does other things too CPU times are up to twice as
long (caches, hyperthreads); of some rounds the cheapest is told.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentevolver.engine import Generated
from agentevolver.gateway.rollout import CallLimits, GatewayRollout
from agentevolver.gateway.server import GatewayServer
from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.tools.formats import tool_format
from agentevolver.utils.heap import freeze_heap
from context_manager.chat import ChatRenderer
from context_manager.settings import ContextLimits

TURNS, SAMPLED, ANSWER_WORDS = 20, 100, 130
LIMITS = ContextLimits(4096, 30_000, 32_768, 1024, 4096)
TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else '') }}
{{- '\\n\\n# Tools\\n<tools>' }}{%- for tool in tools %}{{ '\\n' + tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nA call is <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}{{ '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def make_model(folder: Path) -> None:
    """Write a tokenizer and a configuration, as vLLM wants them; there are no weights."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = sorted(str(path) for path in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train(texts, trainers.BpeTrainer(vocab_size=32_000, initial_alphabet=alphabet, special_tokens=special))
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in ("<tool_call>", "</tool_call>")])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    made.save_pretrained(folder)
    config = json.loads((seed_policy_path() / "config.json").read_text())
    config |= {"vocab_size": len(made), "max_position_embeddings": 32_768, "eos_token_id": made.eos_token_id}
    (folder / "config.json").write_text(json.dumps(config))


def make_replies(tokenizer: Any) -> list[list[int]]:
    """Return 64 replies of words and a call, each of `SAMPLED` tokens."""
    draw = random.Random(0)
    words = [i for i in range(300, 20_000) if (text := tokenizer.decode([i])).isascii() and text.strip().isalpha()]
    begin = tokenizer.encode('<tool_call>\n{"name": "search", "arguments": {"query": "', add_special_tokens=False)
    end = [*tokenizer.encode('"}}\n</tool_call>', add_special_tokens=False), tokenizer.eos_token_id]
    count = SAMPLED - len(begin) - len(end) - 4
    return [[*draw.choices(words, k=count), *begin, *draw.choices(words, k=4), *end] for _ in range(64)]


# ---- servers: a process each, which answers one line of JSON to each line of its input ----


class MockEngine:
    """Answers at once."""

    def __init__(self, tokenizer: Any) -> None:
        self._replies = make_replies(tokenizer)
        self._calls = 0

    def reply(self) -> list[int]:
        """Return the next reply."""
        self._calls += 1
        return list(self._replies[self._calls % len(self._replies)])

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        ids = self.reply()
        # Numbers of 32 bits, as vLLM's are.
        return Generated(ids, [-(self._calls % 64) - i / 1024 for i in range(len(ids))], 0, 0)


async def serve_gateway(folder: Path) -> None:
    """Serve rollouts: `{"open": N}` opens as many and says where; `{"close": true}` makes their samples."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    engine, renderer, calls = MockEngine(tokenizer), ChatRenderer(tokenizer), tool_format("hermes", tokenizer)
    server, opened = GatewayServer(), []
    await server.start()
    freeze_heap()  # as a rollout worker does, and vLLM's server
    say({"ready": True})
    async for order in orders():
        if "open" in order:
            for number in range(order["open"]):
                limits = CallLimits(calls=TURNS)
                rollout = GatewayRollout(engine, renderer, calls, LIMITS, {}, f"r{number}", call_limits=limits)
                opened.append((rollout, server.open(rollout)))
            say({"urls": [endpoint.base_url for _, endpoint in opened[-order["open"] :]]})
        else:
            kept = size_of([rollout for rollout, _ in opened], {id(engine), id(renderer), id(calls), id(LIMITS)})
            kept, before, tokens, count = kept / len(opened), time.process_time(), 0, 0
            for rollout, endpoint in opened:
                server.close(endpoint)
                samples = rollout.samples()
                assert len(samples) == 1 and sum(samples[0].response_mask) == TURNS * SAMPLED
                tokens += len(samples[0].prompt_ids) + len(samples[0].response_ids)
                count += 1
            opened.clear()
            sample_ms = (time.process_time() - before) / count * 1000
            say({"tokens": tokens / count, "sample_ms": sample_ms, "kept_kb": kept / 1000})
    await server.stop()


def size_of(roots: list[Any], shared: set[int]) -> int:
    """Return the bytes of all that objects hold, but for what is shared and for code."""
    seen, found, total = set(shared), list(roots), 0
    while found:
        one = found.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | types.FunctionType | types.CodeType):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        found += gc.get_referents(one)
    return total


async def serve_vllm(folder: Path) -> None:
    """Serve vLLM's own application."""
    import uvicorn
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.openai.api_server import build_app, init_app_state
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.renderers import renderer_from_config
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor

    flags = ["--model", str(folder), "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enforce-eager"]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args([*flags, "--dtype", "float32"])
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config()

    class Client(AsyncLLM):
        """vLLM's client without an engine."""

        def __init__(self) -> None:
            self.vllm_config, self.model_config = config, config.model_config
            self.observability_config = config.observability_config
            self.renderer = renderer_from_config(config)
            self.input_processor = InputProcessor(config, self.renderer)
            self.words = PreTrainedTokenizerFast.from_pretrained(folder)
            self.mock, self.log_requests, self.log_stats = MockEngine(self.words), False, False
            self.engine_core, self.output_handler = None, None

        @property
        def errored(self) -> bool:
            return False

        @property
        def is_running(self) -> bool:
            return True

        def shutdown(self, timeout: float | None = None) -> None:
            """Nothing runs."""

        async def is_tracing_enabled(self) -> bool:
            return False

        async def get_supported_tasks(self) -> tuple[str, ...]:
            return ("generate",)

        async def generate(
            self, prompt: Any, sampling_params: Any, request_id: str, **_: Any
        ) -> AsyncIterator[RequestOutput]:
            ids = self.mock.reply()
            text = self.words.decode(ids, skip_special_tokens=sampling_params.skip_special_tokens)
            output = CompletionOutput(0, text, ids, None, None, finish_reason="stop")
            given = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else prompt.prompt_token_ids
            yield RequestOutput(request_id, None, list(given), None, [output], finished=True)

    app = build_app(args, ("generate",), config.model_config)
    await init_app_state(Client(), app.state, args, ("generate",))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", access_log=False))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    say({"ready": True})
    async for order in orders():
        say({"urls": [url] * order["open"]} if "open" in order else {})
    server.should_exit = True
    await serving


async def orders() -> AsyncIterator[dict[str, Any]]:
    """Yield the lines of the input."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        yield json.loads(line)


def say(found: dict[str, Any]) -> None:
    """Answer an order."""
    sys.__stdout__.write(f"GATEWAY {json.dumps(found)}\n")
    sys.__stdout__.flush()


# ---- what plays and measures ----


class Served:
    """A server's process."""

    def __init__(self, kind: str, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.gateway", "--serve", kind, "--folder", str(folder)]
        errors = None if os.environ.get("GATEWAY_BENCH_ERRORS") else subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        self._read()

    def ask(self, **order: Any) -> dict[str, Any]:
        """Return the answer to an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("GATEWAY "):
                found: dict[str, Any] = json.loads(line.removeprefix("GATEWAY "))
                return found
        raise SystemExit("the server ended: see why with GATEWAY_BENCH_ERRORS=1")

    def cpu_s(self) -> float:
        """Return the seconds of CPU that it took so far, its children's that ended included."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        """Return its resident size in bytes."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


async def play(http: aiohttp.ClientSession, url: str, model: str, words: list[str], draw: random.Random) -> None:
    """Play an episode."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": " ".join(draw.choices(words, k=100))},
        {"role": "user", "content": " ".join(draw.choices(words, k=40))},
    ]
    for _ in range(TURNS):
        body = {"model": model, "messages": messages, "tools": [TOOL]}
        async with http.post(f"{url}/chat/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
        said = answer["choices"][0]["message"]
        assert len(said["tool_calls"]) == 1, said
        messages.append({key: said[key] for key in ("role", "content", "tool_calls")})
        text = " ".join(draw.choices(words, k=ANSWER_WORDS))
        messages.append({"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": text})


async def measure(served: Served, model: str, words: list[str], clients: int, episodes: int) -> dict[str, float]:
    """Return CPU ms a turn, turns a second, KB by which the process has grown and KB that an open episode keeps."""
    urls = served.ask(open=episodes)["urls"]
    cpu, size, begun = served.cpu_s(), served.resident(), time.perf_counter()
    waiting = list(enumerate(urls))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def client() -> None:
            while waiting:
                number, url = waiting.pop()
                await play(http, url, model, words, random.Random(number))

        await asyncio.gather(*[client() for _ in range(clients)])
    seconds, turns = time.perf_counter() - begun, episodes * TURNS
    cpu, grown = served.cpu_s() - cpu, served.resident() - size
    return {
        "cpu_ms": cpu / turns * 1000,
        "turns_s": turns / seconds,
        "grown_kb": grown / episodes / 1000,
        **served.ask(close=True),
    }


def main() -> None:
    """Run the benchmark, or a server of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="the one of the least CPU is told: other work only adds")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--kinds", nargs="+", default=["gateway", "vllm"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", choices=["gateway", "vllm"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        # The loop that Ray's workers and vLLM's server have.
        uvloop.run((serve_gateway if args.serve == "gateway" else serve_vllm)(args.folder))
        return
    columns = {
        **{"cpu_ms": "CPU ms a turn", "turns_s": "turns/s", "kept_kb": "KB kept an episode"},
        **{"grown_kb": "KB resident an episode", "tokens": "tokens", "sample_ms": "ms a sample"},
    }
    table = Table("server", "clients", *columns.values())
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        words = [text for i in range(300, 3000) if (text := tokenizer.decode([i]).strip()).isascii() and text.isalpha()]
        for kind in args.kinds:
            served = Served(kind, folder)
            try:
                asyncio.run(measure(served, str(folder), words, 4, 8))  # what is made once is made now
                for clients in args.clients:
                    rounds = [
                        asyncio.run(measure(served, str(folder), words, clients, args.episodes))
                        for _ in range(args.rounds)
                    ]
                    found = min(rounds, key=lambda one: one["cpu_ms"])
                    rows.append({"server": kind, "clients": clients, **found})
                    shown = [f"{found[key]:.2f}" if key in found else "" for key in columns]
                    table.add_row(kind, str(clients), *shown)
            finally:
                served.stop()
    Console().print(table)
    if args.json is not None:
        args.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
