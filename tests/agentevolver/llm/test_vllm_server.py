"""The roles against a server that is not ours: vLLM's own OpenAI server with the shipped seed policy, which says
nothing that fits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from advantage_processor import AttributionSettings
from advantage_processor.attributor import Attributor, judge_settings
from agentevolver.llm import LLM, LLMError, LLMRefused, LLMReplyError, LLMSettings, Role, ServedModel, prompts
from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.types import Attribution, Outcome, Step, StopReason, Task, Trajectory
from experience_manager.attempts import read_attempts
from experience_manager.distill import Distilled, Distiller
from experience_manager.settings import DistillationSettings
from task_manager.actions import format_of
from task_manager.explore import Exploration, ExploredStep, Explorer, RandomStrategy
from task_manager.graders.base import GradingError
from task_manager.graders.judge import JudgeGrader
from task_manager.profile import shipped_profile
from task_manager.settings import StrategySettings, SynthesisSettings, VerificationSettings
from task_manager.synthesize import Synthesis, Synthesiser, TaskProposal
from task_manager.verify import ProposalVerdict as Verification
from task_manager.verify import Verifier
from task_manager.world import SeedWorld
from tests.agentevolver.llm.test_client import Verdict
from tests.free_ports import free_port
from tests.task_manager.questioning_fakes import LocalPocket

READY_S = 240.0
ASK = [{"role": "system", "content": "site k3"}, {"role": "user", "content": "delete note milk"}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    log = Path(tmp_path_factory.mktemp("vllm")) / "vllm.log"
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={seed_policy_path()}",
        "--served-model-name=tiny",
    ]
    command += ["--max-model-len=512", "--dtype=float32", "--enforce-eager", "--host=127.0.0.1", f"--port={port}"]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)


def _wait(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(health, timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"vLLM was not up after {READY_S:g} s: {log.read_text()[-3000:]}")


def settings(url: str, **values: Any) -> LLMSettings:
    sampling = {"temperature": 0.0, "max_tokens": 12}
    return LLMSettings.model_validate(
        {"base_url": url, "model": "tiny", "api_key_env": None, "sampling": sampling, **values}
    )


@pytest.mark.e2e
async def test_what_vllm_says_is_handled_by_type(url: str) -> None:
    async with LLM(settings(url)) as llm:
        reply = await llm.chat(Role.EXPLORER, ASK, top_k=1, seed=3)
        assert reply.text.strip()
        assert reply.prompt_tokens > 0 < reply.completion_tokens <= 12
        with pytest.raises(LLMReplyError, match="also after one repair"):
            await llm.structured(Role.JUDGE, ASK, Verdict)
        with pytest.raises(LLMRefused, match="HTTP 400"):
            await llm.chat(Role.JUDGE, [{"role": "user", "content": "milk " * 600}])
        with pytest.raises(LLMRefused, match="HTTP 400"):
            await llm.chat(Role.JUDGE, ASK, temperature=-1.0)
    async with LLM(settings(url, model="other")) as llm:
        with pytest.raises(LLMRefused, match="HTTP 404"):
            await llm.chat(Role.JUDGE, ASK)


@pytest.mark.e2e
async def test_the_policy_plays_a_role_where_it_is_served(url: str) -> None:
    configured = LLMSettings.model_validate(
        {"roles": {"verifier": {"base_url": "policy", "sampling": {"max_tokens": 12}}}}
    )
    async with LLM(configured, policy=lambda: ServedModel(url, "tiny")) as llm:
        assert (await llm.chat(Role.VERIFIER, ASK, temperature=0.0)).completion_tokens > 0
        solve = prompts.messages("verifier/solve", "Solve.", {"opening": "site k3", "task": "delete note milk"})
        with pytest.raises((LLMReplyError, LLMRefused)):
            await llm.structured(Role.VERIFIER, solve, Verdict)


@pytest.mark.e2e
async def test_a_model_can_be_held_to_the_schema(url: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "Verdict", "schema": Verdict.model_json_schema()}}
    async with LLM(settings(url)) as llm:
        # A tiny model fills its string until the tokens are spent; what there is of the reply is as the schema wants
        # it.
        reply = await llm.chat(Role.JUDGE, ASK, response_format=wanted, max_tokens=40)
    assert reply.text.lstrip().startswith("{")


WORLD = SeedWorld("pocket", "note_add.k3.7")
STEPS = (("note.list home", "n1 milk"), ("note.add milk home", "ok n2"), ("done", "bye"))


def trajectory() -> Trajectory:
    """A rollout in that world, for roles to be asked about."""
    task = Task("note_add.k3.7#0", "pocket", True, "add note milk", "done", "llm", {"solution": ["done"]})
    messages = [{"role": "system", "content": "site k3"}, {"role": "user", "content": "add note milk"}]
    for action, observation in STEPS:
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]
    steps = [Step(i, action, observation, 0.0, 0, 0, False, 0.0, 0.0) for i, (action, observation) in enumerate(STEPS)]
    return Trajectory(task, "g", 0, messages, steps, StopReason.FINISHED, Outcome(1.0, True, ""))


@pytest.mark.e2e
async def test_every_role_that_the_policy_plays_ends_in_its_result_or_in_its_failure(url: str) -> None:
    """The seed policy was taught to act in the pocket world; of JSON it knows nothing, and its context is short."""
    roles = {role.value: {"base_url": "policy", "sampling": {"max_tokens": 24}} for role in Role}
    configured = LLMSettings.model_validate({"roles": roles})
    client, fmt, rollout = LocalPocket(), format_of("pocket"), trajectory()
    served = ServedModel(url, "tiny")
    section = AttributionSettings(enable=True)
    async with LLM(configured, policy=served) as llm, LLM(judge_settings(configured, section), policy=served) as judge:
        explored = [ExploredStep(action, observation, "breadth") for action, observation in STEPS]
        exploration = Exploration(WORLD, 0, "site k3", explored)
        profile, strategy = shipped_profile("pocket"), StrategySettings(breadth_steps=2, depth_steps=1)
        explorer = Explorer(client, llm, fmt, profile, RandomStrategy(), strategy)
        synthesiser = Synthesiser(llm, fmt, profile, SynthesisSettings())
        verifier = Verifier(client, llm, fmt, VerificationSettings(resolve=True))
        proposal = TaskProposal("add note milk", ["note.add milk home", "done"], 0.9)
        ends = await asyncio.gather(
            explorer.explore(WORLD, 0),
            synthesiser.propose(exploration, []),
            verifier.verify(WORLD, proposal, "site k3"),
            JudgeGrader("llm", llm).grade(rollout.task, rollout, client, "i"),
            Attributor(section, judge, group_size=1).label_steps(rollout, step=1),
            Distiller(llm, DistillationSettings()).distil(read_attempts([rollout])),
            return_exceptions=True,
        )
        counts = llm.metrics()
    found = dict(zip(("explorer", "synthesiser", "verifier", "judge", "attributor", "summariser"), ends, strict=True))
    results = (Exploration, Synthesis, Verification, Outcome, Attribution, Distilled)
    for (role, end), result in zip(found.items(), results, strict=True):
        assert isinstance(end, result | LLMError | GradingError), f"{role}: {end!r}"
        assert str(end), f"{role} says why"
    attribution, distilled = found["attributor"], found["summariser"]
    assert isinstance(attribution, Attribution) and (attribution.good or (attribution.kind and attribution.reason))
    assert isinstance(distilled, Distilled) and (distilled.experiences or distilled.counts["failed_extraction"])
    for role in ("explorer", "synthesiser", "verifier", "judge", "summariser"):
        assert counts[f"llm/{role}/calls"] + counts[f"llm/{role}/errors"] > 0, f"the {role} was asked"
