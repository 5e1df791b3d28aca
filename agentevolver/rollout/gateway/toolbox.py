"""The tools of a request: how the prompt lists them, and how calls are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from agentevolver.rollout.gateway.request import invalid
from agentevolver.rollout.tools.reply import END_THINK, begins_in_thought
from agentevolver.rollout.tools.schema import Parsed, ToolFormat, ToolSpec
from context_manager.chat import ChatRenderer

MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Toolbox:
    """A list of tools with the renderer of its prompts. A rollout has one object per list."""

    specs: tuple[ToolSpec, ...]
    renderer: ChatRenderer
    tool_format: ToolFormat | None

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], *, may_call: bool) -> Parsed:
        """Return a reply's text and calls. A malformed call stays in the text."""
        if self.tool_format is None or not self.specs or not may_call:
            return Parsed(self.renderer.text(ids))
        # A thought that was cut off contains no calls.
        if begins_in_thought(self.renderer, prompt_ids) and END_THINK not in self.renderer.raw_text(ids):
            return Parsed(self.renderer.text(ids))
        parsed = self.tool_format.parse(ids, self.specs)
        return parsed if parsed.calls else Parsed(self.renderer.text(ids), (), parsed.problems)


class Toolboxes:
    """The tool lists of a rollout, each prepared once."""

    def __init__(self, renderer: ChatRenderer, tool_format: ToolFormat | None) -> None:
        self._renderer = renderer
        self._format = tool_format
        self._made: dict[bytes, Toolbox] = {b"": Toolbox((), renderer, tool_format)}

    def of(self, tools: list[dict[str, Any]]) -> Toolbox:
        """Return the toolbox of a request's tools. Raises RequestRefused."""
        written = _written(tools) if tools else b""
        if (made := self._made.get(written)) is not None:
            return made
        if self._format is None:
            raise invalid(
                "tools are not supported by this run: set actor_rollout_ref.rollout.tool_format to the model's own",
                "tools",
            )
        made = Toolbox(_specs(written), self._renderer.for_tools(tools), self._format)
        self._made[written] = made
        return made


def _written(tools: list[dict[str, Any]]) -> bytes:
    try:
        written = orjson.dumps(tools)
    except orjson.JSONEncodeError as error:
        raise invalid(f"tools cannot be written as JSON: {error}", "tools") from error
    if len(written) > MAX_BYTES:
        raise invalid(f"tools must not exceed {MAX_BYTES} bytes, and these have {len(written)}", "tools")
    return written


@lru_cache(maxsize=64)
def _specs(written: bytes) -> tuple[ToolSpec, ...]:
    try:
        # Checking a schema takes longer than a call may, so it is cached for the process.
        return tuple(ToolSpec.of_openai(tool) for tool in orjson.loads(written))
    except ValueError as error:
        raise invalid(str(error), "tools") from error
