"""The action format of reasoning_gym: an answer in tags ends the episode."""

from __future__ import annotations

from typing import Any

from env_service.action_format import PlainFormat


class ReasoningGymFormat(PlainFormat):
    exploration = (1, 1)

    def closing(self, answer: str | None) -> str | None:
        return f"<answer>{answer}</answer>" if answer else None

    def answer_of(self, action: str) -> str | None:
        from env_service.environments.reasoning_gym.actions import ReasoningAnswer, parse

        found = parse(action)
        return found.text if isinstance(found, ReasoningAnswer) else None

    def action_of_call(self, name: str, arguments: dict[str, Any]) -> str | None:
        return f"<answer>{arguments.get('answer', '')}</answer>" if name == "answer" else None


Format = ReasoningGymFormat
