"""Self-managed context: messages have ids, and the policy decides which to keep, remove or compress.

Commands stand between `<context>` and `</context>`, one per line: `keep m1 m2`, `remove m3`, `compress m4: shorter`. A
prompt beyond the trigger makes the template ask for commands. Opening and newest turn are protected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from context_manager.sliding_window import TrimmingTemplate
from context_manager.template import SideCall, TimelineMessage

GUIDE = (
    "Your context is small. Messages carry ids like [m2]; your reply before it is m1. To free room, add commands to a "
    "reply, one a line: "
    "<context>\nremove m1 m2\ncompress m4: short text\nkeep m6\n</context>"
)
REQUEST = (
    "Your context holds {used} of {limit} tokens and must shrink. Reply with commands alone, one a line: remove IDS, "
    "compress ID: short text, keep IDS. Tokens by id: {sizes}"
)
REMOVED = "(removed)"
_BLOCK = re.compile(r"<context>(.*?)(?:</context>|\Z)", re.DOTALL)
# Bounded, since `int` refuses very long numbers and a reply may be a row of digits.
_COMMAND = re.compile(r"[\s*\-]*(keep|remove|compress)\s+((?:\[?m[0-9]{1,9}\]?[\s,]*)+)(?::\s*(.*))?", re.IGNORECASE)
_BREAK = re.compile(r"\n|;(?=\s*(?:keep|remove|compress)\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Command:
    verb: Literal["keep", "remove", "compress"]
    numbers: tuple[int, ...]
    text: str = ""


def without_blocks(text: str) -> str:
    rest, count = _BLOCK.subn("", text)
    return rest.strip() if count else text


def commands_of(text: str, *, asked: bool = False) -> list[Command]:
    """Return a reply's commands in order, ignoring other lines; with `asked` the tags are optional."""
    blocks = _BLOCK.findall(text) or ([text] if asked else [])
    found = []
    for line in _BREAK.split("\n".join(blocks)):
        match = _COMMAND.fullmatch(line.strip())
        if match is None:
            continue
        verb, numbers, said = (
            match[1].lower(),
            tuple(int(n) for n in re.findall("[0-9]+", match[2])),
            (match[3] or "").strip(),
        )
        if verb == "compress" and (not said or len(numbers) != 1):
            continue
        found.append(Command(verb, numbers, said))  # type: ignore[arg-type]
    return found


class SelfManagedTemplate(TrimmingTemplate):
    reads: ClassVar[frozenset[str]] = TrimmingTemplate.reads
    _asked_at = -1

    def opening(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        messages[0]["content"] = f"{messages[0]['content']}\n\n{GUIDE}"
        return messages

    def shown(self, message: dict[str, Any], number: int) -> dict[str, Any]:
        return {**message, "content": f"[m{number}] {message['content']}"}

    def remembered(self, text: str, sampled_ids: Sequence[int]) -> str:
        return without_blocks(text)

    def action(self, text: str) -> str:
        return without_blocks(text)

    def replied(self, text: str) -> None:
        self._carry_out(commands_of(self.beyond_thoughts(text)))

    def housekeeping(self) -> SideCall | None:
        if self._asked_at == len(self.recorder.snapshots) or not self.too_long or not (within := self._within_reach()):
            return None
        # Newest turns are left out until the question fits: the policy is not asked about them anyway.
        shown, size = self.timeline.messages, self.timeline.sizes()
        for turn in reversed(self.timeline.turns()):
            sizes = ", ".join(f"m{message.number} {size[message]}" for message in shown if message in within)
            request = REQUEST.format(used=len(self.timeline.prompt()), limit=self.trigger, sizes=sizes)
            call = self.policy_call("context", request, shown)
            if call is not None:
                return call
            shown = shown[: -len(turn)]
            if not within.intersection(shown):
                break
        return None

    def settle(self, call: SideCall, text: str) -> None:
        self._asked_at = len(self.recorder.snapshots)
        self._carry_out(commands_of(self.beyond_thoughts(text), asked=True))

    def edit(self) -> None:
        self.fit()

    def _within_reach(self) -> set[TimelineMessage]:
        turns = self.timeline.turns()
        newest = set(turns[-1]) if turns else set()
        return {message for message in self.timeline.messages if message not in newest}

    def _carry_out(self, commands: list[Command]) -> None:
        by_number = {message.number: message for message in self._within_reach()}
        gone: list[TimelineMessage] = []
        for command in commands:
            for number in command.numbers:
                if (message := by_number.get(number)) is None:
                    continue
                if command.verb == "remove":
                    gone.append(by_number.pop(number))
                else:
                    by_number[number] = (
                        self._pin(message) if command.verb == "keep" else self._compress(message, command.text)
                    )
        if gone:
            self._remove(gone)

    def _pin(self, message: TimelineMessage) -> TimelineMessage:
        self.note_edit("keep", [message])
        return self.timeline.pin(message)

    def _compress(self, message: TimelineMessage, text: str) -> TimelineMessage:
        text = self.renderer.clip(text, self.note_tokens)
        if len(text) >= len(message.content):  # not shorter: ignored
            return message
        self.note_edit("compress", [message], text)
        return self.timeline.rewrite(message, text if message.ids is not None else self._marked(message, text))

    def _remove(self, gone: list[TimelineMessage]) -> None:
        # Two adjacent replies break chat templates, and so does a call without its answer: a placeholder stays there.
        gone = self._with_answers(gone)
        self.note_edit("remove", gone)
        before: TimelineMessage | None = None
        between: TimelineMessage | None = None
        for message in list(self.timeline.messages):
            if message in gone:
                between = message if message.ids is None else between
                continue
            if between is not None and before is not None and before.ids is not None and message.ids is not None:
                gone.remove(between)
                self.timeline.rewrite(between, self._marked(between, REMOVED))
            before, between = message, None
        self.timeline.drop(gone)

    def _with_answers(self, gone: list[TimelineMessage]) -> list[TimelineMessage]:
        # A call and its answers go together; a pinned answer keeps its call.
        rest: list[TimelineMessage] = []
        for message in gone:
            call, *answers = self.timeline.exchange_of(message)
            if message is call:
                if not any(answer.pinned for answer in answers):
                    rest += [message, *(answer for answer in answers if answer not in gone)]
            elif call in gone and not any(answer.pinned for answer in answers):
                rest.append(message)
            else:
                self.timeline.rewrite(message, self._marked(message, REMOVED))
        return rest

    def _marked(self, message: TimelineMessage, text: str) -> str:
        return f"[m{message.number}] {text}"
