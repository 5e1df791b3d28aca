"""The roles against a server that is not ours: vLLM's own OpenAI server with the shipped seed policy, which says
nothing that fits."""

from __future__ import annotations

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

from agentevolver.llm import LLM, LLMRefused, LLMReplyError, LLMSettings, Role
from agentevolver.recipes.offline.seed import seed_policy_path
from tests.agentevolver.llm.test_client import Verdict
from tests.free_ports import free_port

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
async def test_a_model_can_be_held_to_the_schema(url: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "Verdict", "schema": Verdict.model_json_schema()}}
    async with LLM(settings(url)) as llm:
        # A tiny model fills its string until the tokens are spent; what there is of the reply is as the schema wants
        # it.
        reply = await llm.chat(Role.JUDGE, ASK, response_format=wanted, max_tokens=40)
    assert reply.text.lstrip().startswith("{")
