"""The whole thing over HTTP: the real client of a faulty endpoint, the real service, the commands."""

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from questioning_fakes import LocalPocket
from test_pipeline import pipeline, settings_of

from agentevolver.llm.client import LLM
from agentevolver.llm.settings import LLMSettings
from agentevolver.recipes.offline.teacher.service import Teacher
from task_manager.profile import load_profile
from task_manager.tasks import read_objectives
from task_manager.verify import recheck_tasks
from tests.free_ports import free_port

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "env_service"))


class FaultyEndpoint:
    """The teacher behind a server that, now and then, does one of the things that real ones do, each in its turn."""

    FAULTS = ("429", "500", "hang", "empty", "prose", "half", "cut", "html", "score")

    def __init__(self, share=0.0, seed=0):
        self.teacher = Teacher()
        self.rng = random.Random(seed)
        self.share = share
        self.done = {fault: 0 for fault in self.FAULTS}

    async def answer(self, request):
        body = await request.json()
        fault = min(self.FAULTS, key=lambda name: self.done[name]) if self.rng.random() < self.share else None
        if fault is not None:
            self.done[fault] += 1
        if fault == "429":
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "0.02"})
        if fault == "500":
            return web.json_response({"error": {"message": "oops"}}, status=500)
        if fault == "hang":
            await asyncio.sleep(30)
        if fault == "html":
            return web.Response(text="<html>gateway</html>", content_type="text/html")
        if fault == "cut":
            request.transport.close()
        text = self.teacher.answer(body["messages"], seed=body.get("seed"), temperature=body.get("temperature", 0.7))
        said = {
            "empty": "",
            "prose": "I am happy to help with that!",
            "half": text[: len(text) // 2],
            "score": '{"score": 1}',
        }
        message = {"role": "assistant", "content": said.get(fault, text)}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        )


@contextlib.asynccontextmanager
async def served(endpoint):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    settings = LLMSettings(
        base_url=f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1",
        model="m",
        api_key_env=None,
        timeout_s=1,
        tries=4,
    )
    try:
        async with LLM(settings) as llm:
            yield llm
    finally:
        await runner.cleanup()


@pytest.mark.service
async def test_an_endpoint_with_every_fault_neither_hangs_nor_lets_anything_through(tmp_path):
    endpoint = FaultyEndpoint(share=0.1)
    seeds = tuple(f"note_add.k{site}.{site}" for site in range(10))
    settings = settings_of(num_explore_threads=5, max_failed_share=1.0, verification={"judge": True})
    async with served(endpoint) as llm:
        run = pipeline(tmp_path, llm, LocalPocket(), settings=settings, seeds=seeds)
        tasks = await asyncio.wait_for(run.run(), 240)
    assert all(endpoint.done.values()), "each fault happened"
    assert len(tasks) >= 10
    findings = await recheck_tasks(LocalPocket(), tasks, {}, 4)
    assert all(finding.flaw is None for finding in findings)


def run_command(tmp_path, *arguments):
    command = [sys.executable, "-m", "task_manager", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.service
def test_the_commands_go_from_nothing_to_verified_tasks(tmp_path):
    tree = {
        "env_service": {"env_type": "pocket", "env_url": f"http://127.0.0.1:{free_port()}"},
        "data": {"val_splits": ["dev"], "val_filter": {"n": 24}},
        "llm": {"teacher": {"url": f"http://127.0.0.1:{free_port()}/v1"}},
        "task_manager": {
            "n": 1,
            "max_seed_tasks": 8,
            "train_data_path": "tasks.jsonl",
            "deduplication": {"semantic": False},
        },
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(tree))
    made = run_command(tmp_path, "synthesize", "--settings", "s.yaml", "--with-services")
    assert made.returncode == 0, made.stderr
    tasks = read_objectives(tmp_path / "tasks.jsonl")
    assert len(tasks) >= 10 and "tasks: tasks.jsonl" in made.stdout

    stats = run_command(tmp_path, "stats", "--settings", "s.yaml")
    assert re.search(rf"kept +│ {len(tasks)} ", stats.stdout) and "tokens" in stats.stdout
    shown = run_command(tmp_path, "show", "--settings", "s.yaml", "--id", tasks[0].task_id)
    assert tasks[0].query in shown.stdout and "graded by state" in shown.stdout and "breadth" in shown.stdout
    dropped = run_command(tmp_path, "show", "--settings", "s.yaml", "--dropped")
    assert "dropped" in dropped.stdout and tasks[0].task_id not in dropped.stdout

    spoilt = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    spoilt[1]["task"]["metadata"]["solution"] = ["note.tag n99 fun", "done"]
    (tmp_path / "spoilt.jsonl").write_text("".join(json.dumps(line) + "\n" for line in spoilt))
    checked = run_command(
        tmp_path, "verify", "--settings", "s.yaml", "--with-services", "--tasks", "spoilt.jsonl", "--out", "good.jsonl"
    )
    assert checked.returncode == 1 and f"{len(tasks) - 1} of {len(tasks)} reference solutions hold" in checked.stdout
    assert len(read_objectives(tmp_path / "good.jsonl")) == len(tasks) - 1


class Drafter(Teacher):
    """A teacher that also drafts a profile, which the offline one does not: its worlds have theirs."""

    def answer(self, messages, **options):
        if "role: synthesiser/profile" not in messages[0]["content"]:
            return super().answer(messages, **options)
        assert "note.find" in messages[1]["content"]
        note = {
            "name": "Note",
            "description": "A note.",
            "attrs": {},
            "opts": [{"name": "find", "description": "find"}],
        }
        preference = {"num_entities": 1, "num_opts": 1, "relation_difficulty": 1}
        made = {"name": "Pocket", "background": "An office.", "entities": [note], "task_preference": preference}
        return json.dumps({**made, "rubrics": ["It can be told from the state."]})


@pytest.mark.service
async def test_the_profile_of_an_unknown_environment_is_drafted(tmp_path):
    endpoint = FaultyEndpoint()
    endpoint.teacher = Drafter()
    url = f"http://127.0.0.1:{free_port()}"
    async with served(endpoint) as llm:
        asked = {"base_url": llm.settings.base_url, "model": "m", "api_key_env": None}
        tree = {"env_service": {"env_type": "pocket", "env_url": url}, "llm": asked, "task_manager": {"n": 1}}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(tree))
        arguments = ("--settings", "s.yaml", "--with-services", "--env-url", url, "--out", "p.json")
        drafted = await asyncio.to_thread(run_command, tmp_path, "profile", *arguments)
    assert drafted.returncode == 0, drafted.stderr
    assert [entity.name for entity in load_profile(tmp_path / "p.json").entities] == ["Note"]
