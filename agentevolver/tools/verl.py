"""verl's parsers as formats, where they read what the family writes without loss.

They read text with regular expressions that take quadratic time on hostile replies, and drop what they cannot read:
each call is therefore cut out by its tags first, is bounded in length, and must come back with as many calls and
arguments as it has tags of them.
"""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Sequence
from typing import Any

from agentevolver.tools.schema import ToolCall, ToolSpec
from agentevolver.tools.tagged import BadCall, TaggedFormat, read_arguments

_LONGEST = 32_768  # characters
_TIMEOUT_S = 60


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """verl's parsers are coroutines that decode in a thread; ours are called from a running loop.
    They get one of their own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verl-tool-parsers", daemon=True).start()
    return loop


class _AsText:
    """A tokenizer whose ids are a text already."""

    pad_token = None

    def decode(self, text: Sequence[str], **options: Any) -> str:
        return "".join(text)


class VerlFormat(TaggedFormat):
    """A parser of verl's, by its name there."""

    # What begins a call, and an argument, between the tags.
    call_begins: str
    argument_begins: str

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        from verl.experimental.agent_loop.tool_parser import ToolParser

        self._parser = ToolParser.get_tool_parser(self.name, _AsText())

    def read_calls(self, text: str, at: int, limit: int, tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], int]:
        """Return the calls between two tags, and the place after them.

        Raises:
            BadCall: verl's parser did not read all of them, or one of their arguments.
        """
        if limit - at > _LONGEST:
            raise BadCall(f"it is longer than {_LONGEST} characters")
        body = text[at:limit]
        reading = self._parser.extract_tool_calls([self.opening, body, self.closing])
        _, read = asyncio.run_coroutine_threadsafe(reading, _loop()).result(_TIMEOUT_S)
        wanted = body.count(self.call_begins)
        if len(read) != wanted or not read:
            raise BadCall(f"{len(read)} calls were read where {wanted} begin with {self.call_begins!r}")
        arguments = sum(len(json.loads(call.arguments)) for call in read)
        wanted = body.count(self.argument_begins)
        if arguments != wanted:
            raise BadCall(f"{arguments} arguments were read where {wanted} begin with {self.argument_begins!r}")
        for call in read:
            read_arguments(call.arguments, 0)
        return [ToolCall(call.name, call.arguments) for call in read], limit


class DeepSeekV4Format(VerlFormat):
    """Calls of DeepSeek V4: tags spelled with `DSML`, each value said to be text or JSON."""

    name = "deepseek_v4"
    opening = "<\uff5cDSML\uff5ctool_calls>"
    closing = "</\uff5cDSML\uff5ctool_calls>"
    call_begins = '<\uff5cDSML\uff5cinvoke name="'
    argument_begins = '<\uff5cDSML\uff5cparameter name="'
