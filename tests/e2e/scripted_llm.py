"""A language model's HTTP endpoint that answers every role's prompt in the form that is asked for, by rule: what it says is no
language model's work, and good enough for a run to go through every part that would ask one.

`python tests/e2e/scripted_llm.py KEY` serves `/v1/chat/completions` on a free port of loopback and prints the address.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request

from agentevolver.llm.prompts import read_sections, read_steps, read_task

Sections = dict[str, str]
Reply = dict[str, Any]

_WORDS = [
    a + b for a in ("ka", "lo", "mi", "tre", "vu", "sha", "ber", "no") for b in ("ran", "dis", "fel", "gom", "put", "ziv", "tal", "que")
]
_TOOL = re.compile(r'^\{"type": "function".*\}$', re.MULTILINE)


def _act(sections: Sections, chance: random.Random) -> Reply:
    """The next action in the environment that the opening shows: a call without arguments, a look at the documentation, or the end."""
    opening, done = sections["opening"], len(read_steps(sections.get("transcript", "")))
    tools = [json.loads(line)["function"] for line in _TOOL.findall(opening)]
    free = [tool["name"] for tool in tools if not tool["parameters"].get("required")]
    if "apis." in opening:
        action = "```python\nprint(apis.api_docs.show_app_descriptions())\n```"
    elif free and not done:
        action = f'<tool_call>\n{{"name": "{chance.choice(free)}", "arguments": {{}}}}\n</tool_call>'
    else:
        action = "There is nothing more to do."
    return {"thought": "one thing after the other", "action": action}


def _tasks(sections: Sections, chance: random.Random) -> Reply:
    steps = read_steps(sections["transcript"])
    in_python = "apis." in sections["opening"]
    answer = "```python\napis.supervisor.complete_task(answer=3)\n```" if in_python else "There are three."
    solution = [*(step.action for step in steps[:1] if "```" in step.action or "<tool_call>" in step.action), answer]
    queries = [f"Find out about {' '.join(chance.sample(_WORDS, 12))} and tell me." for _ in range(2)]
    return {"tasks": [{"query": query, "solution": solution, "confidence": 0.9} for query in queries]}


def _accept(sections: Sections, chance: random.Random) -> Reply:
    return {"reason": "it is what was asked for", "accepted": True, "confidence": 0.9}


def _grade(sections: Sections, chance: random.Random) -> Reply:
    achieved = chance.random() < 0.5
    return {"reason": "drawn", "relevant": True, "achieved": achieved, "score": 90 if achieved else 10}


def _label(sections: Sections, chance: random.Random) -> Reply:
    indices = [step.index for step in read_steps(sections["transcript"])]
    if wanted := sections.get("indices"):
        first, _, last = wanted.partition("-")
        indices = list(range(int(first), int(last or first) + 1))
    return {"steps": [{"index": i, "analysis": "drawn", "label": chance.choice(("GOOD", "BAD"))} for i in indices]}


def _learn(sections: Sections, chance: random.Random) -> Reply:
    topic = " ".join(chance.sample(_WORDS, 5))
    advice = {
        "when_to_use": f"when the task is about {topic}",
        "content": f"look at {topic} first",
        "scope": "",
        "tags": [],
        "confidence": 0.9,
    }
    return {"experiences": [advice]}


def _validate(sections: Sections, chance: random.Random) -> Reply:
    numbers = re.findall(r"^\[(\d+)\]$", sections["experience"], re.MULTILINE)
    return {"judgements": [{"number": int(number), "reason": "sound", "valid": True, "score": 0.9} for number in numbers]}


def _rewrite(sections: Sections, chance: random.Random) -> Reply:
    return {"text": "Look first, and say when you are done."}


def _rerank(sections: Sections, chance: random.Random) -> Reply:
    return {"order": [1]}


ANSWERS: dict[str, Callable[[Sections, random.Random], Reply]] = {
    "explorer/act": _act,
    "verifier/solve": _act,
    "synthesiser/tasks": _tasks,
    "judge/accept": _accept,
    "judge/grade": _grade,
    "attributor/steps": _label,
    "summariser/success": _learn,
    "summariser/failure": _learn,
    "summariser/comparative": _learn,
    "summariser/validate": _validate,
    "summariser/rewrite": _rewrite,
    "summariser/rerank": _rerank,
}


def make_app(key: str) -> FastAPI:
    """Return the endpoint; it wants `key`, and `/counts` tells how often each role's task was asked of which model."""
    app, counts = FastAPI(), Counter[str]()

    @app.post("/v1/chat/completions")
    async def _complete(request: Request) -> dict[str, Any]:
        if request.headers.get("authorization") != f"Bearer {key}":
            raise HTTPException(401, "a key is wanted")
        body = await request.json()
        messages = body["messages"]
        task, sections = read_task(messages[0]["content"]), read_sections(messages[1]["content"])
        if task not in ANSWERS:
            raise HTTPException(400, f"there is no answer to {task}")
        counts[f"{task} of {body['model']}"] += 1
        chance = random.Random(f"{counts.total()}-{hashlib.sha256(messages[1]['content'].encode()).hexdigest()}")
        text = json.dumps(ANSWERS[task](sections, chance))
        return {
            "id": f"scripted-{counts.total()}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }

    @app.get("/counts")
    async def _counts() -> dict[str, int]:
        return dict(counts)

    return app


def main(key: str) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(make_app(key), log_level="warning")).run(sockets=[sock])


if __name__ == "__main__":
    main(sys.argv[1])
