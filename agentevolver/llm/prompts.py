"""Prompt layout of all roles: the line `role: <role>/<task>` above the rules, everything else in delimited sections.

Text of an agent or an environment cannot leave its section or forge a step. `read_sections` and `read_steps` read what
`section` and `transcript` write. docs/llm.md lists the sections and the replies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Messages = list[dict[str, Any]]

SECTIONS = (
    *(
        "profile",
        "preference",
        "opening",
        "tools",
        "task",
        "transcript",
        "better",
        "worse",
        "attempt",
        "reference",
        "outcome",
        "phase",
    ),
    *("steps_left", "tried", "focus", "existing", "count", "experience", "indices", "summary"),
)
NO_STEPS = "(no steps yet)"
# Rough estimate for texts that were not tokenised.
CHARS_PER_TOKEN = 4
# In instructions whose reply is the action itself; other instructions ask for JSON.
REPLY_IS_SENT = "Your reply is sent to the environment as it is"
# Sections that the environment itself writes.
_DECLARING = ("opening", "tools")

_ROLE_LINE = re.compile(r"role: ([a-z]+/[a-z]+)")
# Characters that a model may take for a line break, so that a step could be forged after one.
_LINE_ENDS = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
# Tags of actions in some environments. A tag that the environment itself declares is harmless in a prompt.
_ACTION_TAGS = ("tool_call", "tool_response", "think")
# After `<`: the prompt's own tags, and control tokens of chat templates (`<|im_end|>`, `<end_of_turn>`).
_AFTER_ANGLE = (
    rf"(?=\s*+/?\s*+(?:{'|'.join(SECTIONS)})\b|[|\uff5c][^|\uff5c<>\[&\n]{{1,60}}[|\uff5c]>"
    rf"|/?(?:s|bos|eos|sop|eop|start_of_turn|end_of_turn|{'|'.join(_ACTION_TAGS)})>|</?SYS>>)"
)
_AFTER_BRACKET = r"(?=/?(?:INST|gMASK|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\])"
# Texts that look like our escapes are escaped too, so that `restored` can tell them apart.
_CONTROL = re.compile(rf"(?:<|&(?:amp;)*lt;){_AFTER_ANGLE}|(?:\[|&(?:amp;)*#91;){_AFTER_BRACKET}", re.IGNORECASE)
_DEFUSED = re.compile(rf"&(?:amp;)*lt;{_AFTER_ANGLE}|&(?:amp;)*#91;{_AFTER_BRACKET}", re.IGNORECASE)
_ACTION_TAG = re.compile(rf"</?({'|'.join(_ACTION_TAGS)})>")
_SECTION = re.compile(rf"^<({'|'.join(SECTIONS)})>\n(.*?)\n?^</\1>", re.DOTALL | re.MULTILINE)
_STEP = re.compile(
    r"^step (\d+)\n(?:thought: ?(.*?)\n)?^action: ?(.*?)\nobservation: ?(.*?)(?=^step \d+$|\Z)",
    re.DOTALL | re.MULTILINE,
)


class PromptError(ValueError):
    """The text is not a prompt of this form; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class StepText:
    """One step as a prompt shows it; an empty thought is left out."""

    index: int
    action: str
    observation: str
    thought: str = ""


def defuse(text: str, spared: Collection[str] = ()) -> str:
    """Escape the prompt's own tags and control tokens, and normalise line ends. `restored` takes the escapes back.
    `spared` are names of action tags that stay."""

    def escaped(found: re.Match[str]) -> str:
        if found[0] == "<":
            tag = _ACTION_TAG.match(found.string, found.start())
            return "<" if tag is not None and tag[1] in spared else "&lt;"
        return "&#91;" if found[0] == "[" else f"&amp;{found[0][1:]}"

    return _CONTROL.sub(escaped, _LINE_ENDS.sub("\n", text))


def restored(text: str) -> str:
    return _DEFUSED.sub(_unescaped, text)


def _unescaped(found: re.Match[str]) -> str:
    rest = found[0][1:]
    return f"&{rest.removeprefix('amp;')}" if rest.startswith("amp;") else "<" if rest.lower() == "lt;" else "["


def shorten(text: str, limit: int) -> str:
    """Return about `limit` characters: head, tail, and a mark with the number of omitted characters."""
    if len(text) <= limit:
        return text
    head = (limit + 1) // 2
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[len(text) - (limit - head) :]}"


def section(name: str, text: str, spared: Collection[str] = ()) -> str:
    """Return a section with escaped text, or "" if it is blank; raises ValueError for an unknown name."""
    if name not in SECTIONS:
        raise ValueError(f"{name!r} is no section of a prompt; sections are {', '.join(SECTIONS)}")
    return f"<{name}>\n{defuse(text, spared).strip()}\n</{name}>" if text.strip() else ""


def transcript(steps: Iterable[StepText | tuple[int, str, str]], max_chars: int = 2000) -> str:
    """Return the text of a transcript section. `max_chars` bounds each part of a step."""
    lines = []
    for one in steps:
        step = one if isinstance(one, StepText) else StepText(*one)
        lines.append(f"step {step.index}")
        if step.thought.strip():
            lines.append(f"thought: {_indented(step.thought, max_chars)}")
        lines += [
            f"action: {_indented(step.action, max_chars)}",
            f"observation: {_indented(step.observation, max_chars)}",
        ]
    return "\n".join(lines) or NO_STEPS


def actions(texts: Iterable[str], max_chars: int = 2000) -> str:
    return "\n".join(f"action: {_indented(text, max_chars)}" for text in texts)


def messages(task: str, instructions: str, sections: Mapping[str, str]) -> Messages:
    """Return the two messages of a prompt.

    Args:
        task: role and task, like `judge/grade`.
        instructions: the rules and the reply's schema; no text of an agent or an environment.
        sections: texts by name, in order; empty ones are left out. Action tags that the environment's opening or tools
            declare are not escaped.

    Raises:
        ValueError: the task is not of that form, or a section is unknown.
    """
    head = f"role: {task}"
    if not _ROLE_LINE.fullmatch(head):
        raise ValueError(f"{task!r} is not of the form role/task, like judge/grade")
    spared = {tag for name in _DECLARING for tag in _ACTION_TAG.findall(sections.get(name, ""))}
    body = "\n\n".join(filter(None, (section(name, text, spared) for name, text in sections.items())))
    return [{"role": "system", "content": f"{head}\n\n{instructions.strip()}"}, {"role": "user", "content": body}]


def characters(messages: Messages) -> int:
    return sum(len(str(message["content"])) for message in messages)


def read_task(system: str) -> str:
    """Return `role/task` of a system message; raises PromptError if the first line does not name it."""
    first = system.splitlines()[0].strip() if system.strip() else ""
    found = _ROLE_LINE.fullmatch(first)
    if found is None:
        raise PromptError(
            f"the system message must begin with the line 'role: <role>/<task>', it begins with {first[:80]!r}"
        )
    return found[1]


def read_sections(user: str) -> dict[str, str]:
    """Return the restored sections of a user message by name; the first of a name counts."""
    found: dict[str, str] = {}
    for name, text in _SECTION.findall(user):
        found.setdefault(name, restored(text))
    return found


def read_steps(text: str) -> list[StepText]:
    """Return the steps of a transcript section; raises PromptError if it is malformed or a step number occurs twice."""
    if text.strip() in ("", NO_STEPS):
        return []
    rows = _STEP.findall(text if text.endswith("\n") else text + "\n")
    steps = [
        StepText(int(index), _outdented(action), _outdented(observation), _outdented(thought))
        for index, thought, action, observation in rows
    ]
    if not steps or len({step.index for step in steps}) != len(steps):
        raise PromptError(
            "the transcript must be numbered steps, each 'step i', 'action: ...', 'observation: ...', no number twice"
        )
    return steps


def read_actions(text: str) -> list[str]:
    """Return the actions of a reference section; in a text without the prefix `action: ` each line is an action."""
    if not text.startswith("action: "):
        return [line.strip() for line in text.splitlines() if line.strip()]
    return [_outdented(part) for part in re.split(r"^action: ", text, flags=re.MULTILINE)[1:]]


def _indented(text: str, max_chars: int) -> str:
    return _LINE_ENDS.sub("\n", shorten(text.strip(), max_chars)).replace("\n", "\n  ")


def _outdented(text: str) -> str:
    return text.rstrip("\n").replace("\n  ", "\n")


Steps = Sequence[StepText]

# Last steps, which are shortened only after all others.
LATEST = 2
# Minimum length of a shortened observation, enough to see its kind.
LEAST = 200
# Extra characters for the mark's line breaks, which a transcript indents.
_SLACK = 16


def cut(text: str, limit: int) -> str:
    """Return at most `limit` (60 or more) characters: head, tail, and a mark with the number of omitted characters."""
    if len(text) <= limit:
        return text
    mark = f"\n[... {len(text) - limit} characters and more left out ...]\n"
    head = (limit - len(mark) + 1) // 2
    return f"{text[:head]}{mark}{text[len(text) - (limit - len(mark) - head) :]}"


def fitted(steps: Steps, room: int, size: Callable[[Steps], int]) -> list[StepText]:
    """Return the steps, shortened and then dropped from the oldest on, until `size` of them is at most `room`.

    The `LATEST` steps are never dropped, and every remaining step keeps its number and action. `size` counts the
    characters of the prompt with these steps.
    """
    kept = list(steps)
    old = max(0, len(kept) - LATEST)
    for place in range(old):
        kept[place] = _shortened(kept[place], size(kept) - room)
    while old > 0 and size(kept) > room:
        del kept[0]
        old -= 1
    for place in range(len(kept)):
        kept[place] = _shortened(kept[place], size(kept) - room)
    return kept


def _shortened(step: StepText, excess: int) -> StepText:
    if excess <= 0:
        return step
    left = excess - len(step.thought)
    observation = (
        step.observation if left <= 0 else cut(step.observation, max(LEAST, len(step.observation) - left - _SLACK))
    )
    return replace(step, thought="", observation=observation)
