"""The action format of Python problems: code, and a final answer that ends the episode."""

from __future__ import annotations

from env_service.action_format import PlainFormat


class PythonFormat(PlainFormat):
    r"""Python in fences or as calls of the tool `python`; `\boxed{ANSWER}` or a line `answer: ...` ends the episode."""

    def closing(self, answer: str | None) -> str | None:
        return f"\\boxed{{{answer or 'done'}}}"

    def answer_of(self, action: str) -> str | None:
        from env_service.environments.python_tool.actions import PythonAnswer, parse

        found = parse({"role": "assistant", "content": action})
        return found.text if isinstance(found, PythonAnswer) else None


Format = PythonFormat
