"""Reply types of explorer, synthesiser, verifier and judge, and parsing of a reply into an action."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from agentevolver.llm.errors import LLMReply
from agentevolver.llm.prompts import restored
from agentevolver.llm.reply import NoAnswer, read_reply, read_share, split_thinking
from task_manager.actions import PlainFormat

# Confidence of a reply without one.
DEFAULT_CONFIDENCE = 0.5


def _as_share(value: Any) -> Any:
    # Anything but a share stays unchanged, for pydantic to reject.
    share = read_share(value)
    return value if share is None else share


def _as_action(value: Any) -> Any:
    # Some models nest the action, or put a tool call in its place.
    if isinstance(value, dict) and isinstance(value.get("action"), str | dict):
        return _as_action(value["action"])
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) and value else value


_OF_HUNDRED = re.compile(r"(\d{1,3})(?:\.0+)?\s*(?:/\s*100|%)?")


def _as_percentage(value: Any) -> Any:
    if isinstance(value, str) and (found := _OF_HUNDRED.fullmatch(value.strip())) is not None:
        return int(found[1])
    # A 1 could mean 1 %, 10 % or 100 %: it stays as it is.
    if isinstance(value, float) and 0 < value < 1:
        return round(100 * value)
    return value


Confidence = Annotated[float, BeforeValidator(_as_share), Field(ge=0, le=1)]
Action = Annotated[str, BeforeValidator(_as_action), Field(max_length=20_000)]


# Pydantic sends the docstrings of reply models to endpoints, as `description` in the JSON schema.
class _Reply(BaseModel):
    # Models add keys of their own.
    model_config = ConfigDict(extra="ignore", frozen=True)


class ActReply(_Reply):
    """The next action of an explorer or verifier."""

    thought: str = ""
    action: Action = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, data: Any) -> Any:
        return data[0] if isinstance(data, list) and len(data) == 1 else data


class TaskReply(_Reply):
    query: str = Field(min_length=1, max_length=4_000)
    solution: list[Action] = Field(min_length=1, max_length=100)
    confidence: Confidence = DEFAULT_CONFIDENCE


class TasksReply(_Reply):
    """The proposed tasks of one trajectory, not yet validated; at least one must be usable."""

    tasks: Annotated[list[Any], WithJsonSchema({"type": "array", "items": TaskReply.model_json_schema()})]

    @model_validator(mode="before")
    @classmethod
    def _in_its_shape(cls, data: Any) -> Any:
        if isinstance(data, list) and data and all(isinstance(item, dict) for item in data):
            return {"tasks": data}
        if isinstance(data, dict) and "tasks" not in data and "query" in data:
            return {"tasks": [data]}
        if isinstance(data, dict) and isinstance(data.get("tasks"), dict) and "query" in data["tasks"]:
            return {"tasks": [data["tasks"]]}
        return data

    @model_validator(mode="after")
    def _holds_one(self) -> TasksReply:
        if self.tasks and all(isinstance(read_task(item), str) for item in self.tasks):
            raise ValueError(f"no entry of tasks can be used; the first: {read_task(self.tasks[0])}")
        return self


def read_task(item: Any) -> TaskReply | str:
    """Return an entry of `tasks`, or a message about its flaw."""
    try:
        task = TaskReply.model_validate(item)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the entry'}: {first['msg'].lower()}"
    if not task.query.strip() or not any(action.strip() for action in task.solution):
        return "query or solution is blank"
    return task


class AcceptReply(_Reply):
    """Whether a task is fit for training."""

    reason: str = ""
    accepted: bool
    confidence: Confidence


class GradeReply(_Reply):
    """A grade, whose score must lie in the band of `achieved`."""

    reason: str = ""
    relevant: bool
    achieved: bool
    score: Annotated[int, BeforeValidator(_as_percentage), Field(ge=0, le=100)]

    @model_validator(mode="after")
    def _in_its_band(self) -> GradeReply:
        if not self.relevant and (self.achieved or self.score > 0):
            raise ValueError("relevant is false, so achieved must be false and score 0")
        if self.achieved and self.score < 60:
            raise ValueError(f"achieved is true, so score must be 60 to 100, not {self.score}")
        if not self.achieved and self.score > 40:
            raise ValueError(f"achieved is false, so score must be 0 to 40, not {self.score}")
        return self


_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[ \t]*\n(.*?)\n?^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
# Fence languages that say nothing about the content.
_PLAIN = frozenset({"", "text", "txt", "plaintext", "json", "xml", "tool_call", "action"})
# Keys that models put beside `action`. An object with other keys is an action of an environment that speaks JSON.
_REMARKS = frozenset({"thought", "thoughts", "thinking", "reason", "reasoning", "analysis", "explanation", "plan"})
_OURS = _REMARKS | {"action"}
# An `ActReply` at the start of a line; code in the reply may contain such objects elsewhere.
_OPENS = re.compile(r'^\s*\[?\s*\{\s*"(?:action|thought)"\s*:', re.MULTILINE)
# A lead-in ("My next message:") before a message of one line.
_LEAD_IN = re.compile(r"[^\n]{1,200}:[ \t]*\n[ \t]*\n([^\n]+)")
_ACT_KEYS = re.compile(r'"(?:action|thought)"\s*:')
_OBJECT = re.compile(r'\{\s*"')
LONGEST = 20_000


class NoAction(ValueError):
    """A reply without a usable action. The message goes back to the model, so it says what to change."""


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """A message to the environment, and the thought before it."""

    action: str
    thought: str = ""


def read_action(reply: LLMReply, fmt: PlainFormat, *, fenced: bool = False) -> ParsedAction:
    """Parse a reply into an action; raises NoAction.

    The first native call is converted to the environment's text format, JSON in the shape of `ActReply` is parsed, and
    any other text is the action itself. `fenced`: the environment's messages contain code fences, so fences in a reply
    are kept.
    """
    if reply.tool_calls:
        call = reply.tool_calls[0]
        given = _arguments(call.arguments)
        if given is not None and _is_act(given) and not _REMARKS.isdisjoint(given):
            # Some models wrap the JSON reply in a call of a tool that was not offered.
            try:
                found = ActReply.model_validate(given)
            except ValidationError as error:
                raise NoAction(str(error.errors()[0]["msg"])) from error
            return _checked(as_action(found.action, fmt), found.thought or reply.thinking or reply.text)
        return _checked(_written(call.name, given, fmt), reply.thinking or reply.text)
    try:
        thinking, text = split_thinking(reply.text)
    except NoAnswer as error:
        raise NoAction(str(error)) from error
    thought, text = "\n".join(filter(None, (reply.thinking.strip(), thinking))), restored(text).strip()
    if reply.finish_reason == "length":
        raise NoAction("the reply was cut off, say less")
    text = _unwrapped(text, fenced=fenced)
    if _is_ours(text, fenced=fenced):
        try:
            found = read_reply(text, ActReply)
        except NoAnswer as error:
            if error.attempted:
                raise NoAction(str(error)) from error
        else:
            return _checked(as_action(found.action, fmt), found.thought or thought)
    if not fenced and (led := _LEAD_IN.fullmatch(text)) is not None:
        text = led[1].strip()
    if _is_broken(text):
        raise NoAction("the JSON of the reply is broken")
    return _checked(as_action(text, fmt), thought)


def as_action(text: str, fmt: PlainFormat) -> str:
    """Return an action in the environment's format, converting a JSON tool call."""
    call = _call_in(text)
    if call is None:
        return text
    return fmt.action_of_call(*call) or text


def _written(name: str, given: dict[str, Any] | None, fmt: PlainFormat) -> str:
    if given is None:
        raise NoAction(f"the arguments of the call of {name} are no JSON object")
    action = fmt.action_of_call(name, given)
    if action is None:
        raise NoAction(f"there is no tool {name} that could be called; write the message itself")
    return action


def _is_act(data: Any) -> bool:
    if not isinstance(data, dict) or not isinstance(data.get("action"), str | dict) or not data["action"]:
        return False
    return len(data) == 1 or not _REMARKS.isdisjoint(data)


def _is_ours(text: str, *, fenced: bool) -> bool:
    """Whether a text contains, or tried to contain, an `ActReply`."""
    if not _ACT_KEYS.search(text) or (fenced and (not _OPENS.search(text) or _FENCE.search(text))):
        return False
    try:
        data = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return True
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    return _is_act(data) or (isinstance(data, dict) and _OURS.issuperset(data))


def _is_broken(text: str) -> bool:
    if not _OBJECT.match(text):
        return False
    try:
        json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return True
    return False


def _unwrapped(text: str, *, fenced: bool) -> str:
    fences = _FENCE.findall(text)
    if len(fences) != 1 or fences[0][0].lower() not in (("json",) if fenced else _PLAIN):
        return text
    return str(fences[0][1]).strip()


def _call_in(text: str) -> tuple[str, dict[str, Any]] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        data = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    call = data.get("function", data)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = _arguments(call.get("arguments", call.get("parameters")))
    return None if arguments is None else (call["name"], arguments)


def _arguments(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}", strict=False)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _checked(action: str, thought: str) -> ParsedAction:
    if not action.strip():
        raise NoAction("the reply is empty")
    if len(action) > LONGEST:
        raise NoAction(f"the message is longer than {LONGEST} characters")
    return ParsedAction(action, " ".join(thought.split()))
