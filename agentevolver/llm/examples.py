"""Two or three short examples of what a role answers, shown before its prompt.

A small model copies the form of an example, and the words of a schema that stand for what it should write. They are of
a made-up house, so that nothing of an environment is given away; they stand between the rules and the prompt, so that
a server's prefix cache keeps both.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from agentevolver.llm.prompts import NO_STEPS, REPLY_IS_SENT, Messages, PromptError, read_task, section

_SET = "step 0\naction: heater.find hall\nobservation: hall h4 17\nstep 1\naction: heater.set h4 19\nobservation: ok\n"
_SET += "step 2\naction: done\nobservation: bye"
_WRONG = "step 0\naction: heater.find attic\nobservation: attic h2 15\nstep 1\naction: done 17\nobservation: bye"
_REFUSED = "step 0\naction: door.find back\nobservation: back d1 open\nstep 1\naction: door.lock d1\n"
_REFUSED += "observation: err add the code\nstep 2\naction: done\nobservation: bye"
_DETOUR = "step 0\naction: heater.find hall\nobservation: hall h4 17\nstep 1\naction: heater.set hall 19\n"
_DETOUR += "observation: err use heater.set ID DEGREES\nstep 2\naction: heater.set h4 19\nobservation: ok\nstep 3\n"
_DETOUR += "action: door.find back\nobservation: back d1 open\nstep 4\naction: done\nobservation: bye"
_HEAT, _HOW_WARM, _LOCK = "set the heater in the hall to 19", "how warm is the attic", "lock the back door"

Example = tuple[dict[str, str], dict[str, Any]]


def _grade(task: str, steps: str, reference: str, reason: str, score: int) -> Example:
    reply = {"reason": reason, "relevant": True, "achieved": score >= 60, "score": score}
    return {"task": task, "transcript": steps, "reference": reference}, reply


def _labels(task: str, steps: str, outcome: str, *labels: tuple[str, str]) -> Example:
    sections = {"task": task, "transcript": steps, "outcome": outcome, "indices": f"0-{len(labels) - 1}"}
    entries = [{"index": i, "analysis": analysis, "label": label} for i, (analysis, label) in enumerate(labels)]
    return sections, {"steps": entries}


def _accept(task: str, steps: str, reason: str, accepted: bool) -> Example:
    return {"task": task, "transcript": steps}, {"reason": reason, "accepted": accepted, "confidence": 0.9}


def _act(thought: str, action: str) -> dict[str, Any]:
    return {"thought": thought, "action": action}


_HOUSE = "You are in a house. Each message is one call: TOOL ARGUMENTS.\nTools:\n- heater.find ROOM\n"
_HOUSE += "- heater.set ID DEGREES\n- door.find NAME\n- door.lock ID CODE\n- done"


def _experience(lesson: tuple[str, str], tag: str) -> dict[str, Any]:
    when, content = lesson
    entry = {"when_to_use": when, "content": content, "scope": "", "tags": [tag], "confidence": 0.9}
    return {"experiences": [entry]}


_NAMED = "step 0\naction: heater.set hall 19\nobservation: err use heater.set ID DEGREES\nstep 1\naction: done\n"
_NAMED += "observation: bye"
_BY_ID = "before a heater is set", "heater.set takes an id and refuses a room's name: heater.find ROOM shows the id."
_CODE = "before a door is locked", "door.lock is refused without the code: end the call with the code."
_IS_SET = "Asked: the hall's heater at 19. Step 0 shows that it is h4, step 1 set h4 to 19 and got ok, step 2 ended."
_IS_WRONG = "Asked: the attic's temperature, which step 0 shows as 15. Step 1 answers 17, which is wrong."
_IS_REFUSED = "Asked: the back door locked. Step 1 got an error, and was not tried again: the door is still open."

_EXAMPLES: dict[str, tuple[Example, ...]] = {
    "judge/grade": (
        _grade(_HOW_WARM, _WRONG, "action: heater.find attic\naction: done 15", _IS_WRONG, 20),
        _grade(_HEAT, _SET, "action: heater.find hall\naction: heater.set h4 19\naction: done", _IS_SET, 95),
        _grade(_LOCK, _REFUSED, "action: door.find back\naction: door.lock d1 4711\naction: done", _IS_REFUSED, 20),
    ),
    "judge/accept": (
        _accept(_HOW_WARM, _WRONG, _IS_WRONG, False),
        _accept(_HEAT, _SET, _IS_SET, True),
    ),
    "explorer/act": (
        (
            {"opening": _HOUSE, "phase": "breadth", "transcript": NO_STEPS},
            _act("what heaters are there", "heater.find hall"),
        ),
        (
            {
                "opening": _HOUSE,
                "phase": "depth",
                "transcript": "step 0\naction: heater.find hall\nobservation: hall h4 17\nstep 1\n"
                "action: heater.set hall 19\nobservation: err use heater.set ID DEGREES",
            },
            _act("step 0 showed the id that the error asks for", "heater.set h4 19"),
        ),
    ),
    "attributor/steps": (
        _labels(
            _HOW_WARM,
            _WRONG,
            "failure\nscore: 0",
            ("It shows the temperature that is asked for.", "GOOD"),
            ("It answers another temperature than step 0 shows.", "BAD"),
        ),
        _labels(
            _HEAT,
            _DETOUR,
            "success\nscore: 1",
            ("It shows the id h4, which step 2 needs.", "GOOD"),
            ("It is refused and changes nothing.", "BAD"),
            ("It does what is asked.", "GOOD"),
            ("It looks at something that was not asked for.", "BAD"),
            ("It ends the episode when all is done.", "GOOD"),
        ),
    ),
    "synthesiser/tasks": (
        (
            {"count": "1", "transcript": _SET.replace("step 2\naction: done\nobservation: bye", "")},
            {
                "tasks": [
                    {
                        "query": "set the heater in the hall to 19 degrees",
                        "solution": ["heater.find hall", "heater.set h4 19", "done"],
                        "confidence": 0.9,
                    }
                ]
            },
        ),
        (
            {"count": "1", "transcript": "step 0\naction: heater.find attic\nobservation: attic h2 15"},
            {
                "tasks": [
                    {
                        "query": "how warm is it in the attic?",
                        "solution": ["heater.find attic", "done 15"],
                        "confidence": 0.95,
                    }
                ]
            },
        ),
    ),
    "summariser/success": (
        ({"task": _HEAT, "transcript": _DETOUR, "outcome": "success\nscore: 1"}, _experience(_BY_ID, "heater")),
    ),
    "summariser/failure": (
        ({"task": _LOCK, "transcript": _REFUSED, "outcome": "failure\nscore: 0"}, _experience(_CODE, "door")),
    ),
    "summariser/comparative": (({"task": _HEAT, "better": _DETOUR, "worse": _NAMED}, _experience(_BY_ID, "heater")),),
    "summariser/validate": (
        (
            {
                "experience": f"[1]\nwhen_to_use: {_BY_ID[0]}\ncontent: {_BY_ID[1]}\n"
                "[2]\nwhen_to_use: always\ncontent: Be careful with the hall.",
                "task": _HEAT,
                "transcript": _DETOUR,
            },
            {
                "judgements": [
                    {"number": 1, "reason": "Steps 1 and 2 show both halves of it.", "valid": True, "score": 0.9},
                    {"number": 2, "reason": "It does not say what to do.", "valid": False, "score": 0.0},
                ]
            },
        ),
    ),
}


def with_examples(messages: Messages) -> Messages:
    """Return a prompt with the examples of its task between the rules and the first question, if there are any."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    rules = str(messages[0]["content"])
    is_action = REPLY_IS_SENT in rules
    if not is_action and "Reply with JSON" not in rules:
        return messages
    try:
        task = read_task(rules)
    except PromptError:
        return messages
    has_reference = any("<reference>" in str(message["content"]) for message in messages)
    return [messages[0], *_shown(task, has_reference, is_action), *messages[1:]]


@cache
def _shown(task: str, with_reference: bool, is_action: bool) -> Messages:
    made: Messages = []
    for sections, reply in _EXAMPLES.get(task, ()):
        named = ((name, text) for name, text in sections.items() if with_reference or name != "reference")
        body = "\n\n".join(section(name, text) for name, text in named)
        said = reply["action"] if is_action else json.dumps(reply)
        made += [{"role": "user", "content": body}, {"role": "assistant", "content": said}]
    return made
