"""vLLM's tool parsers as formats, by the names of vLLM's `--tool-call-parser`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from agentevolver.rollout.tools.json_text import UnparsedCall, check_arguments
from agentevolver.rollout.tools.reply import END_THINK, MAX_PROBLEMS, THINK
from agentevolver.rollout.tools.schema import Parsed, ParsedCall, ToolFormat, ToolSpec
from agentevolver.utils.errors import ConfigError
from agentevolver.utils.turn_ends import ends_by_file

_LONGEST = 65_536  # characters
# Attributes of vLLM's parsers that hold the start marker of a call.
_MARKERS = (
    "tool_call_start_token",
    "tool_calls_start_token",
    "bot_token",
    "bot_string",
    "tc_start",
    "tool_start_token",
)


class VllmFormat(ToolFormat):
    """One of vLLM's parsers, by name. vLLM is imported when the first one is made."""

    def __init__(self, parser: str, tokenizer: Any) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        self.name = f"vllm:{parser}"
        self._request = ChatCompletionRequest
        self._tokenizer = tokenizer
        self._ends = frozenset(chain.from_iterable(ends_by_file(tokenizer).values()))
        try:
            self._parser = ToolParserManager.get_tool_parser(parser)
            # Some parsers are stubs, which only a call shows.
            self._parser(tokenizer, []).extract_tool_calls("", ChatCompletionRequest(messages=[], model="policy"))
        except KeyError:
            names = ", ".join(ToolParserManager.list_registered())
            raise ConfigError(f"tool_format: vLLM has no tool parser {parser!r}; it has {names}") from None
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"tool_format: vLLM's parser {parser!r} cannot read this tokenizer: {error}") from error

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        thought, text = self._split(ids)
        if len(text) > _LONGEST:
            return Parsed(
                thought + text, (), (f"The reply is longer than {_LONGEST} characters: no call was looked for.",)
            )
        request = self._request(messages=[], model="policy", tools=[tool.to_openai() for tool in tools] or None)
        parser = self._parser(self._tokenizer, request.tools)
        try:
            read = parser.extract_tool_calls(text, request)
        except Exception as error:  # forty parsers, any of which may raise anything
            return Parsed(thought + text, (), (f"The call could not be read: {str(error)[:100]}.",))
        calls, problems = [], []
        for call in read.tool_calls:
            try:
                check_arguments(call.function.arguments)
                if not call.function.name:
                    raise UnparsedCall("it has no name")
                calls.append(ParsedCall(call.function.name, call.function.arguments))
            except UnparsedCall as error:
                problems.append(f"The call of {str(call.function.name)[:60]!r} could not be read: {error}.")
        # The parsers return an unreadable reply as text. It counts as a problem if it contains the parser's own marker.
        marker = next((mark for mark in _markers(parser) if mark in text), None)
        if marker is not None and not read.tool_calls:
            problems.append(f"No call could be read after {marker}.")
        return Parsed((thought + (read.content or "")).strip(), tuple(calls), tuple(problems[:MAX_PROBLEMS]))

    def _split(self, ids: Sequence[int]) -> tuple[str, str]:
        said = ids[:-1] if ids and ids[-1] in self._ends else ids
        text: str = self._tokenizer.decode(said, skip_special_tokens=False)
        thought, end, rest = text.partition(END_THINK)
        if end:
            return thought + end, rest
        return (text, "") if text.lstrip().startswith(THINK) else ("", text)


def _markers(parser: Any) -> list[str]:
    held = (getattr(parser, attribute, None) for attribute in _MARKERS)
    return [marker for marker in held if isinstance(marker, str) and marker]
