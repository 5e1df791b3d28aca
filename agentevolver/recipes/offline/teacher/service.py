"""HTTP service of the teacher: `/v1/chat/completions`, `/v1/models`, `/healthz`.

A reply depends on the teacher's seed, the prompt, and the request's `seed` or, without one, the number of times this
prompt was sent before. At temperature 0 it depends on seed and prompt alone. A request that the teacher does not
understand gets HTTP 400 in OpenAI's form.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from agentevolver.llm.settings import TEACHER_TOKEN
from agentevolver.recipes.offline.teacher import attributor, explorer, judge, summariser, synthesiser
from agentevolver.recipes.offline.teacher.prompt import (
    WHAT,
    MistakeRates,
    NotUnderstood,
    Prompt,
    TeacherDraws,
    read_prompt,
)
from agentevolver.utils.health import health_facts
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.shield import Shield, answer_errors

Handler = Callable[[Prompt, TeacherDraws], dict[str, Any] | str]

TEACHER = "agentevolver offline teacher"
"""The service's name on its health page."""

HANDLERS: dict[str, Handler] = {
    "explorer/act": explorer.explore,
    "synthesiser/tasks": synthesiser.tasks,
    "verifier/solve": explorer.solve,
    "judge/accept": judge.accept,
    "judge/grade": judge.grade,
    "attributor/steps": attributor.steps,
    "summariser/success": summariser.success,
    "summariser/failure": summariser.failure,
    "summariser/comparative": summariser.comparative,
    "summariser/validate": summariser.validate,
    "summariser/rewrite": summariser.rewrite,
    "summariser/rerank": summariser.rerank,
    "summariser/context": summariser.context,
}
MODEL = "teacher"
FENCED = 0.15
MAX_BODY_BYTES = 4_000_000
_REMEMBERED = 50_000
_DEFAULT_TEMPERATURE = 0.7


@dataclass(slots=True)
class Teacher:
    """Answers prompts. `record` is a file with one JSON line for every deliberate mistake."""

    seed: int = 0
    rates: MistakeRates = field(default_factory=MistakeRates)
    record: Path | None = None
    served: Counter[str] = field(default_factory=Counter)
    planted: Counter[str] = field(default_factory=Counter)
    _asked: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def answer(self, messages: Any, *, seed: int | None = None, temperature: float = _DEFAULT_TEMPERATURE) -> str:
        prompt = read_prompt(messages)
        handler = HANDLERS.get(prompt.task)
        if handler is None:
            raise NotUnderstood(f"there is no role and task {prompt.task!r}; known are {', '.join(HANDLERS)}")
        draws = TeacherDraws(random.Random(self._chance(messages, seed, temperature)), self.rates, temperature)
        reply = handler(prompt, draws)
        text = reply if isinstance(reply, str) else self._dressed(reply, draws)
        self.served[prompt.task] += 1
        self._keep(prompt.task, draws.planted)
        return text

    def _chance(self, messages: Any, seed: int | None, temperature: float) -> str:
        digest = hashlib.sha256(json.dumps(messages, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
        if temperature == 0:
            return f"{self.seed}-{digest}"
        if seed is not None:
            return f"{self.seed}-{digest}-seed-{seed}"
        count = self._asked.pop(digest, 0)
        self._asked[digest] = count + 1
        if len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        return f"{self.seed}-{digest}-{count}"

    def _dressed(self, reply: dict[str, Any], draws: TeacherDraws) -> str:
        text = json.dumps(reply)
        if draws.errs(self.rates.malformed):
            kind = draws.rng.choice(("prose", "half", "other keys"))
            draws.plant("malformed", how=kind)
            if kind == "prose":
                return "I looked at this carefully, and I would say that it is as one would expect."
            if kind == "half":
                return text[: max(2, len(text) * 2 // 3)]
            return json.dumps({"result": list(reply.values())})
        return f"Here it is:\n```json\n{text}\n```" if draws.errs(FENCED) else text

    def _keep(self, task: str, planted: list[dict[str, Any]]) -> None:
        self.planted.update(f"{task}: {entry['kind']}" for entry in planted)
        if self.record is not None and planted:
            with self.record.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"task": task, **entry}) + "\n" for entry in planted)


def error_body(status: int, detail: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "authentication_error" if status == 401 else "invalid_request_error"
    return {"error": {"message": detail, "type": kind, "param": None, "code": None}}


def make_app(teacher: Teacher, *, access: Access | None = None, delay_s: float = 0.0) -> FastAPI:
    """Return the service. It waits `delay_s` before every reply, to simulate a slow judge."""
    app = FastAPI(title="agentevolver offline teacher", description=WHAT, docs_url=None, redoc_url=None)
    rules = access or Access("127.0.0.1", variable=TEACHER_TOKEN)
    app.add_middleware(Shield, access=rules, body_bytes=MAX_BODY_BYTES, error_body=error_body)
    answer_errors(app, error_body)

    @app.exception_handler(NotUnderstood)
    async def _refuse(request: Request, error: NotUnderstood) -> JSONResponse:
        return JSONResponse(error_body(400, str(error)), status_code=400)

    @app.post("/v1/chat/completions")
    async def _complete(request: Request) -> JSONResponse:
        data = _read(await request.body())
        messages, seed, temperature = _checked(data)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        text = teacher.answer(messages, seed=seed, temperature=temperature)
        return JSONResponse(_completion(messages, text, sum(teacher.served.values())))

    @app.get("/v1/models")
    async def _models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": WHAT}]}

    @app.get("/healthz")
    async def _healthz() -> dict[str, Any]:
        return health_facts(TEACHER) | {"what": WHAT, "served": dict(teacher.served), "planted": dict(teacher.planted)}

    return app


def _read(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(f"the request's body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise NotUnderstood("the request's body must be a JSON object")
    return data


def _checked(data: dict[str, Any]) -> tuple[Any, int | None, float]:
    """Return messages, seed and temperature; raises NotUnderstood for fields that have no effect here."""
    for key, harmless in (("stream", (False, None)), ("n", (1, None)), ("tools", ([], None))):
        if data.get(key) not in harmless:
            raise NotUnderstood(f"{key}={data[key]!r} is not supported by {WHAT}")
    seed, temperature = data.get("seed"), data.get("temperature", _DEFAULT_TEMPERATURE)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise NotUnderstood(f"seed={seed!r} must be a whole number")
    if temperature is None:
        temperature = _DEFAULT_TEMPERATURE
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature <= 2:
        raise NotUnderstood(f"temperature={temperature!r} must be a number from 0 to 2")
    return data.get("messages"), seed, float(temperature)


def _completion(messages: list[dict[str, Any]], text: str, number: int) -> dict[str, Any]:
    said = max(1, len(text) // 4)
    asked = sum(len(message["content"]) for message in messages if isinstance(message.get("content"), str)) // 4
    return {
        "id": f"teacher-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
    }
