"""Self-managed context: messages carry ids, and the policy itself says which it keeps, removes or compresses.

It may say so in any reply, between `<context>` and `</context>`, which the environment never sees; and it is asked once
a prompt would exceed the trigger. Either way its decisions are sampled tokens like any others, trained on with the
rest. The budget holds whatever it says: when the prompt is still too long after it was asked, older turns go, and what
it kept before the context is full. The newest turn and the opening are out of its reach.

One command a line (or after a semicolon): `keep m1 m2`, `remove m3`, `compress m4: shorter text`. An answer to the
question for them may leave the tags out. Lines of another form are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from context_manager.sliding_window import TrimmingTemplate
from context_manager.template import Message, SideCall

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
# The length of a number is bounded: a reply may be one endless row of digits, which `int` refuses.
_COMMAND = re.compile(r"[\s*\-]*(keep|remove|compress)\s+((?:\[?m[0-9]{1,9}\]?[\s,]*)+)(?::\s*(.*))?", re.IGNORECASE)
_BREAK = re.compile(r"\n|;(?=\s*(?:keep|remove|compress)\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Command:
    """Command on messages by their numbers; `text` is what a compressed one shall say."""

    verb: Literal["keep", "remove", "compress"]
    numbers: tuple[int, ...]
    text: str = ""


def without_blocks(text: str) -> str:
    """Return a reply without its command blocks; a text that has none is returned as it is."""
    rest, count = _BLOCK.subn("", text)
    return rest.strip() if count else text


def commands_of(text: str, *, asked: bool = False) -> list[Command]:
    """Return the commands of a reply, in order; `asked` says that the whole of it may be commands."""
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
    """Context that the policy manages by commands."""

    reads: ClassVar[frozenset[str]] = TrimmingTemplate.reads
    _asked_at = -1

    def opening(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Say in the first message how it is done."""
        messages[0]["content"] = f"{messages[0]['content']}\n\n{GUIDE}"
        return messages

    def shown(self, message: dict[str, Any], number: int) -> dict[str, Any]:
        """Put the message's id before it."""
        return {**message, "content": f"[m{number}] {message['content']}"}

    def remembered(self, text: str, sampled_ids: Sequence[int]) -> str:
        """Forget commands once they were given."""
        return without_blocks(text)

    def action(self, text: str) -> str:
        """Keep commands from the environment."""
        return without_blocks(text)

    def replied(self, text: str) -> None:
        """Carry out the commands of a reply."""
        self._carry_out(commands_of(self.beyond_thoughts(text)))

    def housekeeping(self) -> SideCall | None:
        """Ask the policy what may go, once between two replies."""
        if self._asked_at == len(self.recorder.snapshots) or not self.too_long or not (within := self._within_reach()):
            return None
        # As much of the conversation as leaves room for the question: at its end stands what the policy is not asked
        # about.
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
        """Carry out what the policy answered."""
        self._asked_at = len(self.recorder.snapshots)
        self._carry_out(commands_of(self.beyond_thoughts(text), asked=True))

    def edit(self) -> None:
        """Hold the budget."""
        self.fit()

    def _within_reach(self) -> set[Message]:
        turns = self.timeline.turns()
        newest = set(turns[-1]) if turns else set()
        return {message for message in self.timeline.messages if message not in newest}

    def _carry_out(self, commands: list[Command]) -> None:
        by_number = {message.number: message for message in self._within_reach()}
        gone: list[Message] = []
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

    def _pin(self, message: Message) -> Message:
        self.note_edit("keep", [message])
        return self.timeline.pin(message)

    def _compress(self, message: Message, text: str) -> Message:
        """Put a shorter text in a message's place; one that is not shorter is left aside."""
        text = self.renderer.clip(text, self.note_tokens)
        if len(text) >= len(message.content):
            return message
        self.note_edit("compress", [message], text)
        return self.timeline.rewrite(message, text if message.ids is not None else self._marked(message, text))

    def _remove(self, gone: list[Message]) -> None:
        """Take messages out. Two replies in a row are something that no chat template expects: a word stays between
        them. A reply that called tools goes with their answers, and of an answer whose call stays, a word does too."""
        gone = self._with_answers(gone)
        self.note_edit("remove", gone)
        before: Message | None = None
        between: Message | None = None
        for message in list(self.timeline.messages):
            if message in gone:
                between = message if message.ids is None else between
                continue
            if between is not None and before is not None and before.ids is not None and message.ids is not None:
                gone.remove(between)
                self.timeline.rewrite(between, self._marked(between, REMOVED))
            before, between = message, None
        self.timeline.drop(gone)

    def _with_answers(self, gone: list[Message]) -> list[Message]:
        """Return what goes so that calls and answers stay together."""
        rest: list[Message] = []
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

    def _marked(self, message: Message, text: str) -> str:
        return f"[m{message.number}] {text}"
