"""PocketWorld behind a gateway, played by somebody else's agent: a policy that knows the solution and says it in
hermes' syntax, the world as a real service, and the agent as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentevolver.rollout.engine import Generated
from agentevolver.rollout.gateway.rollout import GatewayRollout
from agentevolver.rollout.gateway.server import GatewayServer
from agentevolver.rollout.tools.formats import tool_format
from context_manager.chat import ChatRenderer
from context_manager.settings import ContextLimits
from env_service.client import AsyncEnvClient
from env_service.environments.pocket.tests.replays import reference
from tests.agents.scripts.world import Episode
from tests.env_service.local_hosts import serving
from tests.real_tokenizers import build_real

HERE = Path(__file__).parent
VENV = Path(os.environ.get("AGENTS_VENV") or HERE.parents[1] / ".venvs" / "agents")
PYTHON = VENV / "bin" / "python"
CODEX = VENV / "codex" / "node_modules" / ".bin" / "codex"
SCRIPTS = HERE / "scripts"
POCKET = {"pocket": "env_service.environments.pocket.env:PocketEnv"}
# Four and five calls, with an id to read, a PIN, numbers and an answer.
TASKS = ("balance.k7.50000", "pay_met.k5.50000")
LIMITS = ContextLimits(60_000, 60_000, 120_000, 512, 4_000)
AGENT_TIMEOUT_S = 120.0

Call = tuple[str, dict[str, Any]]


@functools.cache
def tokenizer() -> Any:
    """Qwen2.5's chat template over its control tokens, with bytes as the vocabulary."""
    return build_real("qwen2_5", "bytes")


@functools.cache
def renderer() -> ChatRenderer:
    return ChatRenderer(tokenizer())


def solution(task_id: str) -> list[Call]:
    """Return the calls that solve a task, with names as chat APIs take them."""
    calls = []
    for text in reference(task_id, "json"):
        call = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        calls.append((call["name"].replace(".", "_"), call["arguments"]))
    return calls


def hermes(call: Call, before: str = "") -> str:
    """Return a reply that calls a tool as Qwen's template writes it."""
    body = json.dumps({"name": call[0], "arguments": call[1]})
    return f"{before}<tool_call>\n{body}\n</tool_call>"


@dataclass
class Knowing:
    """An engine that says its replies one after the other, whatever it is asked; `prompts` and `said` are what it was
    asked and what it said."""

    replies: Sequence[str]
    prompts: list[list[int]] = field(default_factory=list)
    said: list[list[int]] = field(default_factory=list)

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        assert len(self.said) < len(self.replies), "the agent asks on after its last reply"
        ids = [*renderer().encode(self.replies[len(self.said)]), tokenizer().eos_token_id]
        self.prompts.append([*prompt_ids])
        self.said.append(ids)
        return Generated(ids, [-len(self.said) - place / 1000 for place in range(len(ids))], 1, 1)


@dataclass
class Played:
    """An episode that is over: who played, what the gateway recorded, and the world's own score."""

    engine: Knowing
    rollout: GatewayRollout
    episode: Episode
    score: float

    def check_samples(self, chains: int | tuple[int, int] = 1) -> None:
        """Assert that the episode was solved, in so many chains (or between two numbers), one sample each, whose masks
        are exactly what was sampled."""
        low, high = (chains, chains) if isinstance(chains, int) else chains
        samples = self.rollout.samples()
        assert self.score == 1.0
        assert len(self.engine.said) == len(self.engine.replies), "the agent stopped early"
        assert low <= self.rollout.chains <= high, self.rollout.differences
        assert len(samples) == self.rollout.chains and not self.rollout.dropped
        said = [token for ids in self.engine.said for token in ids]
        masked = [
            (token, log_prob)
            for sample in samples
            for token, log_prob, mine in zip(sample.response_ids, sample.log_probs, sample.response_mask, strict=True)
            if mine
        ]
        assert [token for token, _ in masked] == said
        # The prompts of a chain grow and never change: the sample begins as each of them does.
        wholes = [[*sample.prompt_ids, *sample.response_ids] for sample in samples]
        for prompt, ids in zip(self.engine.prompts, self.engine.said, strict=True):
            assert any(whole[: len(prompt) + len(ids)] == prompt + ids for whole in wholes)

    def check_told(self) -> None:
        """Assert that the policy was shown the tools by its template, the task, and what the world said."""
        first, last = (tokenizer().decode(self.engine.prompts[place]) for place in (0, -1))
        assert "<tools>" in first and self.episode.task in first
        for tool in self.episode.tools:
            assert tool["function"]["name"] in first
        calls = [reply for reply in self.engine.replies if "<tool_call>" in reply]
        assert last.count("<tool_response>") >= len(calls) or "Observation" in last


@contextlib.asynccontextmanager
async def played(
    tasks: Sequence[str], run: Callable[[list[Episode]], Any], replies: Callable[[str], list[str]]
) -> AsyncIterator[list[Played]]:
    """Let an agent play tasks, each a rollout of the gateway's and an instance of the service's."""
    gateway = GatewayServer()
    await gateway.start()
    async with serving(POCKET) as service, AsyncEnvClient(service.url) as client:
        engines, rollouts, endpoints, episodes = [], [], [], []
        for number, task_id in enumerate(tasks):
            state = await client.create_instance("pocket", task_id, f"episode-{number}", {"native_tools": True})
            engines.append(Knowing(replies(task_id)))
            form = tool_format("hermes", tokenizer())
            rollouts.append(GatewayRollout(engines[-1], renderer(), form, LIMITS, {}, f"r{number}", max_samples=None))
            endpoints.append(gateway.open(rollouts[-1]))
            place = endpoints[-1]
            episodes.append(
                Episode(
                    task=state["state"][-1]["content"],
                    base_url=place.base_url,
                    api_key=place.api_key,
                    model=place.model,
                    world_url=service.url,
                    instance=f"episode-{number}",
                    tools=state["info"]["tools"],
                )
            )
        try:
            await run(episodes)
            scores = [await client.evaluate(episode.instance) for episode in episodes]
            for place in endpoints:
                gateway.close(place)
            yield [Played(*one) for one in zip(engines, rollouts, episodes, scores, strict=True)]
        finally:
            await gateway.stop()


def environment(episodes: Sequence[Episode], home: Path) -> dict[str, str]:
    """Return the environment of an agent's process: what it plays, a home of its own, and no way to anywhere but this
    machine."""
    nowhere = "http://127.0.0.1:9"
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": f"{SCRIPTS}:{HERE.parents[1]}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "EPISODES": json.dumps([asdict(episode) for episode in episodes]),
        **{name: nowhere for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")},
        **{name: "127.0.0.1,localhost" for name in ("NO_PROXY", "no_proxy")},
        "HF_HUB_OFFLINE": "1",
        "LANGSMITH_TRACING": "false",
    }


async def run_program(command: Sequence[str | Path], environ: Mapping[str, str], folder: Path) -> str:
    """Run a program to its end in a session of its own, and return what it wrote; fails the test where it does."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env=dict(environ),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), AGENT_TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    text = output.decode(errors="replace")
    assert process.returncode == 0, f"{command[-1]} ended with {process.returncode}:\n{text[-6000:]}"
    return text


def need_agents() -> None:
    """Skip where the agents are not installed; fail where they must be (`AGENTS_REQUIRED`, which tests/run.sh sets)."""
    missing = [str(path) for path in (PYTHON, CODEX) if not path.exists()]
    if missing:
        said = f"{', '.join(missing)}: not there; install the agents with `bash tests/agents/setup.sh`"
        if os.environ.get("AGENTS_REQUIRED"):
            pytest.fail(said)
        pytest.skip(said)
