"""The action format of proposals: one message, which ends the episode."""

from __future__ import annotations

from typing import Any

from env_service.action_format import PlainFormat


class ProposeFormat(PlainFormat):
    """`<question>...</question>` and further blocks; any message ends the episode."""

    exploration = (1, 1)

    def answer_of(self, action: str) -> str | None:
        return action

    def action_of_call(self, name: str, arguments: dict[str, Any]) -> str | None:
        return None


Format = ProposeFormat
