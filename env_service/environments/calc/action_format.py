"""The action format of calc: one call a message, `answer DIGIT` ends the episode."""

from __future__ import annotations

from typing import Any

from env_service.action_format import PlainFormat


class CalcFormat(PlainFormat):
    def explore_params(self, steps: int) -> dict[str, Any]:
        return {**super().explore_params(steps), "verbose": True}

    def closing(self, answer: str | None) -> str | None:
        return f"answer {answer}" if answer else None

    def answer_of(self, action: str) -> str | None:
        from env_service.environments.calc.actions import CalcAnswer, parse

        found = parse(action)
        return found.text if isinstance(found, CalcAnswer) else None

    def action_of_call(self, name: str, arguments: dict[str, Any]) -> str | None:
        from env_service.environments.calc.actions import TOOL_NAME

        if name != TOOL_NAME:
            return None
        return " ".join((TOOL_NAME, *(str(arguments.get(key, "")) for key in ("a", "op", "b"))))

    def signature(self, action: str) -> str:
        return action.split(maxsplit=1)[0] if action.strip() else ""


Format = CalcFormat
