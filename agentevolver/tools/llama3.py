"""Calls of Llama 3.1 to 3.3: JSON objects that are the whole reply, or stand after `<|python_tag|>`, which may also be
followed by a call of a built-in tool or by code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentevolver.tools.formats import ToolFormat
from agentevolver.tools.json_text import BadJson, skip_space
from agentevolver.tools.reply import END_THINK, THINK, Reply, ReplyReader
from agentevolver.tools.schema import Parsed, ToolCall, ToolSpec, find_tool
from agentevolver.tools.tagged import BadCall, Findings, read_json_call
from agentevolver.tools.values import object_text, value_text

_TAG = "<|python_tag|>"
_KEYS = ("parameters", "arguments")
_MEANT = re.compile(r'"(?:parameters|arguments)"\s*:')
_NAMED = re.compile(r'"name"\s*:\s*"([^"]*)"')
_EMBEDDED = re.compile(r'(?<!`)\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"(?:parameters|arguments)"\s*:')
_BUILT_IN = re.compile(r"([A-Za-z_][\w.-]*)\.call\(\s*")
# A value is not escaped: what ends it is followed by the next argument, or the call's end.
_ARGUMENT = re.compile(r'([A-Za-z_]\w*)="(.*?)"(?=,\s*[A-Za-z_]\w*="|\s*\)\s*(?:;|\Z))(?:,\s*)?', re.DOTALL)
_END_CALL = re.compile(r"\s*\)")
# What runs code after `<|python_tag|>`: `ipython` is the role that answers.
_INTERPRETERS = ("code_interpreter", "ipython", "python")


class Llama3Format(ToolFormat):
    """`{"name": ..., "parameters": {...}}`, several parted by `;`.

    Without `<|python_tag|>` the reply must begin with a call. JSON that is no call is text; a call of a known tool
    after other text is a problem.
    """

    name = "llama3"

    def __init__(self, tokenizer: Any) -> None:
        self._reader = ReplyReader(tokenizer, (_TAG, THINK, END_THINK))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The token after a call of a built-in tool, beside the tokenizer's eos."""
        return self._reader.token_ids("<|eom_id|>")

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        """Return a reply's text, calls and problems; raises nothing, whatever a model may write."""
        reply = self._reader.read(ids)
        found = Findings(reply)
        at, closed = _answer(reply)
        tag = next((mark for mark in reply.marks if mark.tag == _TAG and mark.start >= at), None)
        if not closed:
            if tag is not None:
                found.problem(f"The thought was never closed with {END_THINK}, so the call in it was not carried out.")
            return found.parsed()
        start = tag.start if tag else skip_space(reply.text, at)
        at = skip_space(reply.text, tag.end) if tag else start
        while True:
            try:
                call, end = _read(reply.text, at, tools, tagged=tag is not None)
            except (BadCall, BadJson) as error:
                if tag is not None or found.calls or _is_meant(reply.text, at, tools):
                    found.problem(f"The call could not be read: {error}.")
                return found.parsed()
            found.add([call], start, end)
            start = at = skip_space(reply.text, end)
            if reply.text.startswith(";", at):
                found.hide(at, at + 1)
                start = at = skip_space(reply.text, at + 1)
            elif at < len(reply.text):
                found.problem(f"There is more text after a call: {reply.text[at : at + 30]!r}.")
            if at >= len(reply.text) or found.problems:
                return found.parsed()


def _answer(reply: Reply) -> tuple[int, bool]:
    """Return where the thought at a reply's begin ends, and whether it does;
    a thought may have been opened by the prompt."""
    marks = [mark for mark in reply.marks if mark.tag in (THINK, END_THINK)]
    if not marks or (marks[0].tag == THINK and reply.text[: marks[0].start].strip()):
        return 0, True
    end = next((mark.end for mark in marks if mark.tag == END_THINK), None)
    return (0, False) if end is None else (end, True)


def _is_meant(text: str, at: int, tools: Sequence[ToolSpec]) -> bool:
    """Whether text that is no call was meant as one: an object that speaks of parameters, or names a tool; or text
    before such an object."""
    if not text.startswith("{", at):
        return any(find_tool(tools, embedded[1]) for embedded in _EMBEDDED.finditer(text, at))
    named = _NAMED.search(text, at)
    return bool(_MEANT.search(text, at)) or (named is not None and find_tool(tools, named[1]) is not None)


def _read(text: str, at: int, tools: Sequence[ToolSpec], *, tagged: bool) -> tuple[ToolCall, int]:
    if not tagged and not text.startswith("{", at):
        raise BadCall(f"a call must be the whole reply, or follow {_TAG}")
    if text.startswith("{", at):
        try:
            return read_json_call(text, at, _KEYS)
        except BadJson as error:
            raise BadJson(f"its JSON is broken: {error}") from None
    if found := _BUILT_IN.match(text, at):
        return _built_in(text, found, tools)
    interpreter = next((tool for tool in map(lambda name: find_tool(tools, name), _INTERPRETERS) if tool), None)
    key = _code_key(interpreter) if interpreter else None
    if not text[at:].strip() or interpreter is None or key is None:
        raise BadCall(f"a JSON object with name and parameters was expected after {_TAG}")
    return ToolCall(interpreter.name, object_text({key: value_text(text[at:], interpreter, key)})), len(text)


def _code_key(tool: ToolSpec) -> str | None:
    """Return the argument of an interpreter that takes the code: the only one, or the only one that is required."""
    required = list(tool.parameters.get("required", ()))
    keys = required if len(required) == 1 else list(tool.parameters.get("properties", ()))
    return keys[0] if len(keys) == 1 else None


def _built_in(text: str, found: re.Match[str], tools: Sequence[ToolSpec]) -> tuple[ToolCall, int]:
    """Read `name.call(key="value", ...)`."""
    tool = find_tool(tools, found[1])
    members: dict[str, str] = {}
    at = found.end()
    while argument := _ARGUMENT.match(text, at):
        if argument[1] in members:
            raise BadCall(f"the argument {argument[1][:60]!r} stands twice")
        members[argument[1]] = value_text(argument[2], tool, argument[1])
        at = argument.end()
    end = _END_CALL.match(text, at)
    if end is None:
        raise BadCall(f'KEY="value" or ) was expected at {text[at : at + 30]!r}')
    return ToolCall(found[1], object_text(members)), end.end()
