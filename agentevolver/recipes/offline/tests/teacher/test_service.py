"""The teacher over HTTP: its form, its refusals, its malformed share, many calls at once, and the prompts of those who
use it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from agentevolver.llm import LLM, LLMRefused, LLMReplyError, LLMSettings, Role, prompts
from agentevolver.recipes.offline.teacher import service
from agentevolver.recipes.offline.teacher.__main__ import main, parser
from agentevolver.recipes.offline.teacher.prompt import WHAT, MistakeRates
from agentevolver.recipes.offline.teacher.service import HANDLERS, Teacher, make_app
from agentevolver.recipes.offline.tests.teacher.pocket_prompts import NO_MISTAKES, Steps
from agentevolver.utils.web.access import Access
from tests.free_ports import free_port
from tests.trajectories import trajectory

MILK: Steps = [(0, "note.find milk", "milk n3 home"), (1, "note.del n3 yes", "ok"), (2, "done", "bye")]
GRADE = prompts.messages(
    "judge/grade", "Grade.", {"opening": "site k3", "task": "delete note milk", "transcript": prompts.transcript(MILK)}
)


class Grade(BaseModel):
    reason: str
    relevant: bool
    achieved: bool
    score: int


def client(teacher: Teacher) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(make_app(teacher)), base_url="http://127.0.0.1")


@asynccontextmanager
async def serving(teacher: Teacher, delay_s: float = 0.0) -> AsyncIterator[LLMSettings]:
    """Serve a teacher on loopback; yields the section `llm` that uses it."""
    async with serving_app(make_app(teacher, delay_s=delay_s)) as settings:
        yield settings


@asynccontextmanager
async def serving_app(app: FastAPI) -> AsyncIterator[LLMSettings]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        task = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            while not server.started:
                await asyncio.sleep(0.01)
            url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
            yield LLMSettings.model_validate({"base_url": "offline", "teacher": {"url": url}, "concurrency": 64})
        finally:
            server.should_exit = True
            await task


async def test_a_completion_has_openais_form() -> None:
    async with client(Teacher(rates=NO_MISTAKES)) as http:
        reply = (await http.post("/v1/chat/completions", json={"model": "any", "messages": GRADE})).json()
        models = (await http.get("/v1/models")).json()
        health = (await http.get("/healthz")).json()
    assert '"achieved": true' in reply["choices"][0]["message"]["content"]
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"] > 0
    assert models["data"][0]["id"] == "teacher"
    assert models["data"][0]["owned_by"] == health["what"] == WHAT
    assert (health["status"], health["name"]) == ("ok", "agentevolver offline teacher")
    assert "stand-in" in WHAT
    assert health["served"] == {"judge/grade": 1}


SYSTEM = {"role": "system", "content": "role: judge/grade"}
NATIVE = prompts.messages(
    "judge/grade",
    "Grade.",
    {
        "opening": "site k3",
        "task": "delete note milk",
        "transcript": prompts.transcript([(0, '<tool_call>{"name": "note_find"}</tool_call>', "none")]),
    },
)
USER = GRADE[1]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON"),
        (b"[1]", "JSON object"),
        ({}, "messages must be"),
        ({"messages": [USER]}, "messages must be"),
        ({"messages": [USER, USER]}, "of the system"),
        ({"messages": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "x"}]}]}, "must be text"),
        ({"messages": [{"role": "system", "content": "You are a helpful assistant."}, USER]}, "role: <role>/<task>"),
        ({"messages": [{"role": "system", "content": "role: judge/paint"}, USER]}, "no role and task 'judge/paint'"),
        ({"messages": [SYSTEM, {"role": "user", "content": "grade this please"}]}, "no section <task>"),
        ({"messages": [SYSTEM, {"role": "user", "content": "<task>\nfly me to the moon\n</task>"}]}, "no wording"),
        ({"messages": NATIVE}, "native tool calls"),
        ({"messages": GRADE, "stream": True}, "stream=True is not supported"),
        ({"messages": GRADE, "n": 3}, "n=3 is not supported"),
        ({"messages": GRADE, "tools": [{"type": "function"}]}, "is not supported"),
        ({"messages": GRADE, "seed": "one"}, "whole number"),
        ({"messages": GRADE, "temperature": 7}, "from 0 to 2"),
    ],
)
async def test_what_is_not_understood_is_a_400_that_says_why(body: Any, said: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client(Teacher(rates=NO_MISTAKES)) as http:
        reply = await http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("task", sorted(HANDLERS))
@pytest.mark.parametrize(
    "garbage",
    ["\x00", "<" * 500, "step 0\naction: \nobservation: ", "[0]\nwhen_to_use: \ncontent: ", "1-99999999", "é\ud7ff{"],
)
async def test_garbage_in_every_section_is_a_400_or_an_answer(task: str, garbage: str) -> None:
    sections = "\n\n".join(f"<{name}>\n{garbage}\n</{name}>" for name in prompts.SECTIONS)
    messages = [{"role": "system", "content": f"role: {task}"}, {"role": "user", "content": sections}]
    async with client(Teacher(rates=NO_MISTAKES)) as http:
        reply = await http.post("/v1/chat/completions", json={"messages": messages})
    assert reply.status_code in (200, 400)


async def test_malformed_replies_come_at_their_rate_in_three_ways() -> None:
    teacher = Teacher(rates=replace(NO_MISTAKES, malformed=0.3))
    ways: Counter[str] = Counter()
    async with client(teacher) as http:
        for _ in range(500):
            reply = await http.post("/v1/chat/completions", json={"messages": GRADE})
            text = reply.json()["choices"][0]["message"]["content"]
            ways[
                "good"
                if '"score"' in text and re.search(r"\}\s*(```)?$", text)
                else "prose"
                if "{" not in text
                else "result"
                if "result" in text
                else "half"
            ] += 1
    assert 0.24 <= 1 - ways["good"] / 500 <= 0.36
    assert min(ways["prose"], ways["half"], ways["result"]) >= 25
    assert teacher.planted["judge/grade: malformed"] == 500 - ways["good"]


@pytest.mark.service
async def test_the_client_gets_through_to_a_teacher_that_is_often_malformed() -> None:
    teacher = Teacher(rates=replace(NO_MISTAKES, malformed=0.2))
    async with serving(teacher) as settings, LLM(settings) as llm:
        calls = (llm.structured(Role.JUDGE, GRADE, Grade) for _ in range(300))
        replies = await asyncio.gather(*calls, return_exceptions=True)
        repairs = llm.metrics()["llm/judge/repairs"]
    failed = [r for r in replies if isinstance(r, LLMReplyError)]
    assert all(r.achieved for r in replies if isinstance(r, Grade))
    assert len(failed) + sum(isinstance(r, Grade) for r in replies) == 300
    assert 0.01 <= len(failed) / 300 <= 0.09
    assert 30 <= repairs <= 90


@pytest.mark.service
async def test_many_calls_at_once_are_answered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, together = 0, asyncio.Event()

    async def until_all_wait(seconds: float) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 64:
            together.set()
        await asyncio.wait_for(together.wait(), 60)

    monkeypatch.setattr(service, "asyncio", SimpleNamespace(sleep=until_all_wait))
    async with serving(Teacher(rates=NO_MISTAKES), delay_s=0.2) as settings, LLM(settings) as llm:
        await asyncio.gather(*(llm.structured(Role.JUDGE, GRADE, Grade) for _ in range(64)))
    assert waiting == 64


@pytest.mark.service
async def test_a_refusal_reaches_the_caller_as_one() -> None:
    async with serving(Teacher(rates=NO_MISTAKES)) as settings, LLM(settings) as llm:
        with pytest.raises(LLMRefused, match="no wording"):
            messages = prompts.messages(
                "verifier/solve", "Solve.", {"opening": "x", "task": "sing", "transcript": "(no steps yet)"}
            )
            await llm.chat(Role.VERIFIER, messages)


@pytest.mark.service
async def test_with_a_token_the_roles_send_it_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(Teacher(rates=NO_MISTAKES), access=Access("127.0.0.1", "t0ken"))
    async with serving_app(app) as settings:
        monkeypatch.setenv("TEACHER_TOKEN", "t0ken")
        async with LLM(settings) as llm:
            assert (await llm.structured(Role.JUDGE, GRADE, Grade)).achieved
        monkeypatch.delenv("TEACHER_TOKEN")
        async with LLM(settings) as llm:
            with pytest.raises(LLMRefused, match="401"):
                await llm.structured(Role.JUDGE, GRADE, Grade)


def test_beyond_loopback_it_wants_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEACHER_TOKEN", raising=False)
    with pytest.raises(SystemExit, match="set TEACHER_TOKEN"):
        main(["--host=0.0.0.0", "--port=0"])


async def test_numbers_that_python_would_not_read_are_a_400() -> None:
    sections = "<opening>\nsite k3\n</opening>\n\n<count>\n" + "9" * 5000 + "\n</count>"
    messages = [{"role": "system", "content": "role: synthesiser/tasks"}, {"role": "user", "content": sections}]
    async with client(Teacher(rates=NO_MISTAKES)) as http:
        assert (await http.post("/v1/chat/completions", json={"messages": messages})).status_code == 400


# ---- the prompts of those who use the roles ----


async def _answered(messages: list[dict[str, Any]]) -> str:
    async with client(Teacher(rates=NO_MISTAKES)) as http:
        reply = await http.post("/v1/chat/completions", json={"messages": messages, "temperature": 0})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


async def _understood(messages: list[dict[str, Any]]) -> dict[str, Any]:
    text = await _answered(messages)
    data: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return data


async def test_the_task_managers_prompts_are_understood() -> None:
    from task_manager import prompts as theirs
    from task_manager.profile import shipped_profile

    profile = shipped_profile("pocket")
    asked = theirs.explore(
        "site k3",
        profile,
        "breadth",
        [],
        steps_left=9,
        tried=["note.find (2 times)"],
        max_chars=2000,
        reply_format="json",
    )
    assert (await _understood(asked))["action"]
    asked = theirs.explore("site k3", profile, "breadth", [], steps_left=9, tried=[], max_chars=2000)
    assert (await _answered(asked)).startswith("<think>") and "{" not in await _answered(asked)
    asked = theirs.synthesise("site k3", profile, MILK, existing=["pay ann 3"], count=3, max_chars=2000)
    assert len((await _understood(asked))["tasks"]) <= 3
    asked = theirs.solve("site k3", "delete note milk", MILK[:1], steps_left=4, max_chars=2000)
    assert (await _answered(asked)).endswith("</think>note.del n3")
    asked = theirs.accept("site k3", "delete note milk", MILK, MILK, max_chars=2000)
    assert (await _understood(asked))["accepted"]
    asked = theirs.grade(
        "site k3", "delete note milk", MILK, reference=["note.del n3 yes", "done"], mean_and_target=(0.3, 0.3)
    )
    assert (await _understood(asked))["achieved"]


async def test_the_advantage_processors_prompt_is_understood() -> None:
    from advantage_processor.labels import label_messages, read_some

    steps = [{"index": i, "action": a, "observation": o} for i, a, o in MILK]
    played = trajectory(task={"query": "delete note milk"}, steps=steps, outcome={"score": 1.0, "success": True})
    for window in (range(0, 3), range(1, 3)):
        reply = await _understood(label_messages(played, window, success=True, max_chars=2000))
        assert sorted(read_some(json.dumps(reply), list(window)).labels) == list(window)


async def test_the_experience_managers_prompts_are_understood_and_its_screen_lets_the_lessons_through() -> None:
    from experience_manager import prompts as theirs
    from experience_manager.attempts import PastAttempt
    from experience_manager.experience import Category, Experience
    from experience_manager.prompt_injection import problem_with
    from experience_manager.prompts import Judgements, Proposals

    steps = ((0, "note.find milk", "milk n3 home"), (1, "note.del n3", "err read doc note.del first"))
    failed = PastAttempt("t", "t_0", "site k7", "delete note milk", steps, 0.0, False)
    solved = PastAttempt(
        "t",
        "t_1",
        "site k7",
        "delete note milk",
        (*steps, (2, "doc note.del", "use note.del ID"), (3, "note.del n3", "ok")),
        1.0,
        True,
    )
    limits = theirs.PromptLimits(500, 5000)
    asked = [*(theirs.extract(a, 3, limits) for a in (failed, solved)), theirs.compare(solved, failed, 3, limits)]
    found = [Proposals.model_validate(await _understood(messages)) for messages in asked]
    assert all(reply.experiences for reply in found)
    for proposal in (proposal for reply in found for proposal in reply.experiences):
        assert problem_with(proposal.when_to_use, proposal.content) is None
    first = found[0].experiences[0]
    kept = Experience(
        when_to_use=first.when_to_use,
        content=first.content,
        scope=first.scope,
        category=Category.FAILURE,
        validation_score=0.9,
    )
    judged = Judgements.model_validate(await _understood(theirs.validate([kept, kept], solved, limits))).of(2)
    assert all(judgement is not None and judgement.valid for judgement in judged)
    assert (await _understood(theirs.rerank("site k7", "delete note tea", [kept])))["order"] == [1]
    assert (await _understood(theirs.rewrite("site k7", "delete note tea", [kept])))[
        "text"
    ] == "read doc before tag move del ret"
    assert (await _understood(theirs.rewrite("site k8", "delete note tea", [kept])))["text"] == ""


# ---- as a process ----


@pytest.mark.service
def test_it_knows_the_public_words_of_the_environment_and_nothing_else() -> None:
    pocket = "env_service.environments.pocket"
    public = {f"{pocket}.tools", f"{pocket}.wordings"}
    program = "import sys, agentevolver.recipes.offline.teacher.__main__ as _\n"
    program += "print(*(m for m in sys.modules if 'env_service' in m))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert set(out.stdout.split()) == public | {"env_service", "env_service.environments", pocket}
    sources = Path(sys.modules[Teacher.__module__].__file__ or "").parent.glob("*.py")
    named = {name for path in sources for name in re.findall(r"\benv_service[\w.]*", path.read_text())}
    assert named <= public


def test_options_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parser().parse_args([]).wrong_labels == MistakeRates().wrong_labels
    monkeypatch.setenv("TEACHER_WRONG_LABELS", "0.4")
    assert parser().parse_args([]).wrong_labels == 0.4
    assert parser().parse_args(["--wrong-labels", "0.2"]).wrong_labels == 0.2
    with pytest.raises(SystemExit):
        parser().parse_args(["--malformed", "2"])


def test_the_configured_options_are_those_of_the_command_line() -> None:
    settings = LLMSettings()
    made = parser().parse_args(settings.teacher.arguments()[2:])
    rates = {name: getattr(made, name) for name in MistakeRates.__dataclass_fields__}
    assert (
        rates
        == settings.teacher.rates
        == {name: getattr(MistakeRates(), name) for name in MistakeRates.__dataclass_fields__}
    )
    assert (made.host, made.port, made.seed) == ("127.0.0.1", 8093, 0)


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen[str], int]]:
    port = free_port()
    command = [sys.executable, "-m", "agentevolver.recipes.offline.teacher", f"--port={port}"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    yield started, port
    if started.poll() is None:
        started.kill()
    started.communicate(timeout=10)


@pytest.mark.service
def test_it_runs_as_a_module_and_ends_when_asked(process: tuple[subprocess.Popen[str], int]) -> None:
    started, port = process
    assert started.stdout is not None
    assert "stand-in" in started.stdout.readline()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            reply = httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2)
            break
        except httpx.TransportError:
            time.sleep(0.1)
    assert reply.json()["status"] == "ok"
    started.send_signal(signal.SIGTERM)
    assert started.wait(timeout=10) in (0, -signal.SIGTERM)
