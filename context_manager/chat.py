"""Chat messages to token ids, once each, for any chat template.

A conversation is never tokenised as a whole again after its opening: what follows an assistant turn is rendered on its
own (the close of that turn, the new messages, the next generation prompt) and appended to the ids that the engine
really saw. Where a conversation is edited, its pieces (opening, assistant turns, what was said after each, generation
prompt) are put together anew, each still tokenised once. A chat template that cannot be taken apart that way is refused
with `ChatTemplateError` when it is first used.

Control tokens come from the chat template alone. Text that somebody wrote (an environment, a task, an experience, a
tool's description, a rewritten reply) may spell `<|im_end|>` or `</tool_response>`: its characters are encoded, the
token's id never arises.

What follows a reply that called tools is rendered after a stand-in of it, which has the calls' ids and names: templates
want to see the call that a tool answers. The stand-in is thrown away; the reply stays as it was sampled.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from jinja2 import TemplateError

from context_manager.messages import calls_of, for_template, text_of

# Of `PlainTokenizer`.
CHARS_PER_TOKEN = 4
_BITS = 21  # of a code point
_START, _END = "<|im_start|>", "<|im_end|>"
_SPECIAL = {_START: -1, _END: -2}
_SPLIT = re.compile(f"({re.escape(_START)}|{re.escape(_END)})")
# Noncharacters of Unicode, which no text that is exchanged may hold: _CUT stands where text is parted before it is
# tokenised.
_CUT, _EDGE = "\ufdd0", "\ufdd1"


class _Marker(str):
    """Text of ours that is left as it is when a message is made inert."""

    __slots__ = ()


_MARKER = _Marker(f"{_EDGE}assistant{_EDGE}")
_RESERVED = str.maketrans(dict.fromkeys((_CUT, _EDGE), "\ufffd"))
_USER = {"role": "user", "content": "-"}
# What control tokens a template writes is seen in these; one that it refuses is left out.
_TOOL_CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": "-"}}}
_SHOWN: tuple[list[dict[str, Any]], ...] = (
    [{"role": "system", "content": "-"}, _USER, {"role": "assistant", "content": "-"}, _USER],
    [_USER, {"role": "assistant", "content": "-"}, {"role": "tool", "content": "-"}, _USER],
    [
        _USER,
        {"role": "assistant", "content": "", "tool_calls": [_TOOL_CALL]},
        {"role": "tool", "name": "f", "content": "-"},
    ],
)
# The same where a template is given tools; nine letters and digits are an id that every family takes.
_CALL = {**_TOOL_CALL, "id": "c00000000"}
_ANSWER = {"role": "tool", "name": "f", "tool_call_id": "c00000000", "content": "-"}
_CALLED: tuple[list[dict[str, Any]], ...] = (
    *_SHOWN,
    [_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, _ANSWER],
    [_USER, {"role": "assistant", "content": "-"}, _USER, {"role": "assistant", "content": "-"}],
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "-",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "-"}}},
    },
}
# What ends a reply that called tools, in the families that have a token for it.
_CALL_ENDS = ("<|eom_id|>", "<|call|>", "<|observation|>")
# Special tokens that are part of a call; and those that part a reply where there are channels.
_CALL_MARK = re.compile(r"(?i).*(?:tool.?call|python_tag|call_id|\[args\]|function_call|tool.?sep).*")
_CHANNEL_MARKS = ("<|channel|>", "<|start|>", "<|message|>", "<|constrain|>", "<|end|>")
# Renderers that are kept, one a list of tools.
_KEPT = 64


class ChatTemplateError(ValueError):
    """The tokenizer's chat template cannot be continued turn by turn, or not taken apart."""


class ChatTokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    eos_token: str
    eos_token_id: int

    def apply_chat_template(self, conversation: Sequence[dict[str, Any]], **kwargs: Any) -> Any: ...

    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What a chat template writes around messages: before a user message at the start, before a reply that is to be
    sampled, and before an assistant message of the past (without the opened or empty thought that some put before a
    reply)."""

    start: str
    generation: str
    generation_ids: list[int]
    header_ids: list[int]


class ChatRenderer:
    """Renders messages through a tokenizer's own chat template.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        template_kwargs: passed to the template (`enable_thinking`, say).
        stop_token_ids: further ids that end a reply, beside the tokenizer's eos and the token that the chat template
            closes it with.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        template_kwargs: dict[str, Any] | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self.stop_token_ids = frozenset({tokenizer.eos_token_id, *stop_token_ids})
        self.tools: tuple[dict[str, Any], ...] = ()
        self._root = self
        self._of_tools: OrderedDict[str, ChatRenderer] = OrderedDict()
        self._shown: set[tuple[str, bool]] = set()

    def for_tools(self, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer:
        """Return the renderer whose chat template is given these tools (OpenAI's form), one for each list of them; for
        none, the renderer without tools. What names and descriptions spell cannot become a control token."""
        root = self._root
        if not tools:
            return root
        key = json.dumps(list(tools), ensure_ascii=False)
        if (renderer := root._of_tools.get(key)) is None:
            given = json.loads(key)
            renderer = ChatRenderer(self.tokenizer, root.template_kwargs, tuple(root.stop_token_ids))
            renderer._root, renderer.tools = root, tuple(given)
            renderer.template_kwargs["tools"] = renderer._inert(given, by_policy=False)
            root._of_tools[key] = renderer
            if len(root._of_tools) > _KEPT:
                root._of_tools.popitem(last=False)
        root._of_tools.move_to_end(key)
        return renderer

    def _render(self, messages: Sequence[dict[str, Any]], *, generate: bool = True, without_tools: bool = False) -> str:
        as_text = any(message.get("tool_calls") for message in messages) and self._root._arguments_as_text
        try:
            text: str = self.tokenizer.apply_chat_template(
                [
                    self._inert(for_template(message, arguments_as_text=as_text), message.get("role") == "assistant")
                    for message in messages
                ],
                tokenize=False,
                add_generation_prompt=generate,
                **(self._root if without_tools else self).template_kwargs,
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ChatTemplateError(f"the chat template refuses messages of the roles {roles}: {error}") from error
        return text

    def render(self, messages: Sequence[dict[str, Any]], *, generate: bool = True) -> str:
        """Return messages as the text that the chat template makes of them, with a generation prompt or without.

        Raises:
            ChatTemplateError: the template refuses them.
        """
        return self._render(messages, generate=generate).replace(_CUT, "")

    @cached_property
    def _arguments_as_text(self) -> bool:
        """Whether the template takes the arguments of calls as JSON text and not as data."""
        for as_text in (False, True):
            calling = for_template({"role": "assistant", "tool_calls": [_CALL]}, arguments_as_text=as_text)
            try:
                self.tokenizer.apply_chat_template(
                    [_USER, calling, _ANSWER], tokenize=False, add_generation_prompt=True, **self.template_kwargs
                )
            except (TemplateError, TypeError, ValueError):
                continue
            return as_text
        return False

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        """What spells a token that the tokenizer calls special."""
        return _any_of(token.content for token in self._added if token.special)

    @cached_property
    def _control(self) -> re.Pattern[str] | None:
        """What spells a special token, or another added one that the chat template writes itself (`<tool_response>`,
        `<|User|>`, ...)."""
        return self._root._control_of_tools if self.tools else self._spelled(_SHOWN, self.template_kwargs)

    @cached_property
    def _control_of_tools(self) -> re.Pattern[str] | None:
        """The same where the template is given tools."""
        messages = [
            [for_template(message, arguments_as_text=as_text) for message in shown]
            for shown in _CALLED
            for as_text in (False, True)
        ]
        return self._spelled(messages, {**self.template_kwargs, "tools": [_TOOL]})

    def _spelled(
        self, conversations: Iterable[list[dict[str, Any]]], template_kwargs: dict[str, Any]
    ) -> re.Pattern[str] | None:
        """Return what spells a special token, or another added one that the template writes in these conversations."""
        written = []
        for messages in conversations:
            try:
                for prompted in (False, True):
                    kwargs = {"tokenize": False, "add_generation_prompt": prompted, **template_kwargs}
                    written.append(self.tokenizer.apply_chat_template(messages, **kwargs))
            except (TemplateError, TypeError, ValueError):  # this template knows no such message
                continue
        return _any_of(
            token.content for token in self._added if token.special or any(token.content in text for text in written)
        )

    @property
    def _added(self) -> list[Any]:
        return list(self._added_ids.values())

    @property
    def _added_ids(self) -> dict[int, Any]:
        return dict(getattr(self.tokenizer, "added_tokens_decoder", {}))

    def _inert(self, value: Any, by_policy: bool) -> Any:
        """Return a message, or a part of one, with a cut inside everything that spells a control token; the tags that
        the policy itself may write (`<think>`, `<tool_call>`) stay whole in its own messages."""
        if isinstance(value, str):
            if isinstance(value, _Marker):
                return value
            spelled = self._special if by_policy else self._control
            text = value.translate(_RESERVED)
            return spelled.sub(lambda found: found[0][0] + _CUT + found[0][1:], text) if spelled else text
        if isinstance(value, Mapping):
            return {self._inert(key, by_policy): self._inert(part, by_policy) for key, part in value.items()}
        if isinstance(value, Sequence):
            return [self._inert(part, by_policy) for part in value]
        return value

    def _encode_cut(self, text: str) -> list[int]:
        return [token for part in text.split(_CUT) for token in self.encode(part)]

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; a control token that it spells becomes that token, so it is for sampled text and
        the template's own."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_inert(self, text: str) -> list[int]:
        """Return the ids of text that somebody else wrote: no control token among them, whatever it spells."""
        return self._encode_cut(self._inert(text, by_policy=False))

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without special tokens but those that mark a call (`<|python_tag|>`,
        `[TOOL_CALLS]`): what the environment is given."""
        marks, special = self._root._call_marks, self._root._special_ids
        if marks.isdisjoint(ids):
            return self.tokenizer.decode(ids, skip_special_tokens=True)
        said = ids[:-1] if self.ends_turn(ids) else ids
        shown = [token for token in said if token in marks or token not in special]
        return self.tokenizer.decode(shown, skip_special_tokens=False)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(number for number, token in self._added_ids.items() if token.special)

    @cached_property
    def _call_marks(self) -> frozenset[int]:
        """The special tokens that are part of a call and end no reply."""
        special = {number: token.content for number, token in self._added_ids.items() if token.special}
        channels = _CHANNEL_MARKS if _CHANNEL_MARKS[0] in special.values() else ()
        return frozenset(
            number
            for number, text in special.items()
            if number not in self.stop_token_ids and (text in channels or _CALL_MARK.fullmatch(text))
        )

    def ending(self, ids: Sequence[int], text: str) -> list[int] | None:
        """Return the sampled ids whose text is the end `text` of a reply, its last id included; None where `text` does
        not begin with a token."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self.text(ids[middle:])) > len(text):
                low = middle + 1
            else:
                high = middle
        return list(ids[low:]) if self.text(ids[low:]) == text and text else None

    def raw_text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids with their special tokens, the one that closes the turn left out."""
        return self.tokenizer.decode(ids[:-1] if self.ends_turn(ids) else ids, skip_special_tokens=False)

    def opening(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Return the ids of a conversation's first messages and the generation prompt after them."""
        return self._encode_cut(self._render(messages))

    def ends_turn(self, ids: Sequence[int]) -> bool:
        """Whether the last sampled id ends the reply (false: the reply was cut by the token limit)."""
        if not ids:
            return False
        called = bool(self.tools) and self.closes_turn(ids, [_CALL])
        return ids[-1] in self.stop_token_ids or called or self.closes_turn(ids)

    def closes_turn(self, ids: Sequence[int], calls: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Whether the last sampled id is the token with which the chat template closes an assistant turn. A reply that
        ends with another one (`<|endoftext|>`, say, where turns close with `<|im_end|>`) keeps it, and the template's
        follows in later prompts.

        `calls` are those that the reply made, if any: some families close such a turn with a token of its own
        (`<|eom_id|>`, `<|call|>`, `<|observation|>`)."""
        if not ids:
            return False
        if not (calls or self.tools):
            return self._close is not None and ids[-1] == self._close[0]
        if self._root._closes_with_next:
            close = self._root._call_close if calls else self._close
            return close is not None and ids[-1] == close[0]
        closes = (self._close, self._root._call_close)
        return ids[-1] in self._root._call_ends or any(close is not None and ids[-1] == close[0] for close in closes)

    @cached_property
    def _call_ends(self) -> dict[int, str]:
        return {number: token.content for number, token in self._added_ids.items() if token.content in _CALL_ENDS}

    @cached_property
    def _closes_with_next(self) -> bool:
        """Whether a turn has no close of its own: the header of the next message (`<|user|>`, `<|observation|>`) is
        what ends the reply."""
        rendered = self._render([_USER, {"role": "assistant", "content": _MARKER}], generate=False)
        return not rendered.rpartition(_MARKER)[2].strip()

    @cached_property
    def _call_close(self) -> tuple[int, str] | None:
        """Id and text of the token with which the chat template closes a turn that called tools; None where it knows no
        calls, or writes no such token."""
        try:
            tail = self._after([_ANSWER], [_CALL])
        except ChatTemplateError:
            return None
        found = self._first_close(tail)
        return found and (found[1], found[2])

    def _first_close(self, tail: str) -> tuple[int, int, str] | None:
        """Return where the first token that may close a turn stands in a text, its id and its text."""
        found = [(tail.find(text), number, text) for number, text in self._closes() if text and text in tail]
        return min(found, default=None)

    def _closes(self) -> list[tuple[int, str]]:
        """Return ids and texts of the tokens that may close a turn."""
        stops = {number: self.tokenizer.decode([number]) for number in self.stop_token_ids}
        return [*(stops | self._root._call_ends).items(), *([] if self._close is None else [self._close])]

    @cached_property
    def _close(self) -> tuple[int, str] | None:
        """Id and text of the token with which the chat template closes an assistant turn; None if that is no token of
        its own."""
        _, found, tail = self._render([_USER, {"role": "assistant", "content": _MARKER}, _USER]).rpartition(_MARKER)
        first = self.encode(tail)[:1] if found else []
        text = self.tokenizer.decode(first, skip_special_tokens=False)
        special = first and (
            first[0] in self.stop_token_ids or not self.tokenizer.decode(first, skip_special_tokens=True)
        )
        return (first[0], text) if special and tail.startswith(text) else None

    def as_sampled(self, text: str, calls: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the ids of a reply that the chat template wrote, as the policy would have sampled it: up to the token
        that closes the turn, which is added where the template leaves it to the next message."""
        ends = [text.rfind(end) + len(end) for _, end in self._closes() if end and end in text]
        close = self._root._call_close if calls else self._close
        return self.encode(text[: max(ends)] if ends else text + (close[1] if close else ""))

    def continuation(
        self, messages: Sequence[dict[str, Any]], *, closed: bool, calls: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the ids that follow an assistant turn: its close, the new messages, the next generation prompt.

        Args:
            messages: what was said after it; answers of tools (role `tool`) have the ids of `calls`.
            closed: that the sampled ids already hold the turn's closing token, which is then not repeated. When they do
                not, the close is part of the continuation and so never counts as sampled.
            calls: the tool calls of the turn (`closes_turn` is asked with the same ones), in OpenAI's form; no token of
                theirs is among the ids.

        Raises:
            ChatTemplateError: the template refuses the messages, leaves one out, or cannot be continued.
        """
        return self._encode_cut(self._after_assistant(messages, closed, calls))

    def _after_assistant(
        self, messages: Sequence[dict[str, Any]], closed: bool, calls: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        answered = bool(calls) and any(message["role"] == "tool" for message in messages)
        tail = self._after(messages, calls if answered else ())
        for role in {str(message["role"]) for message in messages}:
            if (role, answered) not in self._shown:
                self._check_shown(role, answered)
        if calls:
            return self._after_calls(tail, closed, answered)
        if closed:
            if self._close is None or not tail.startswith(self._close[1]):
                raise ChatTemplateError(
                    f"the chat template closes an assistant message with {tail[:16]!r}, which is no token of its own"
                )
            tail = tail[len(self._close[1]) :]
        return tail

    def _after(self, messages: Sequence[dict[str, Any]], calls: Sequence[Mapping[str, Any]]) -> str:
        """Return what the template writes after the text of an assistant message, or after its last call's argument.

        The tools stand before it and may be long: they are rendered with it only where they change it (Mistral's stand
        in the last message of the user)."""
        return self._tail(messages, calls, without_tools=bool(self.tools) and self._root._tools_stay_in_front)

    @cached_property
    def _tools_stay_in_front(self) -> bool:
        """Whether what is written after an assistant message is the same with tools and without."""
        offered, plain = self.for_tools([_TOOL]), {"role": "tool", "content": "-"}
        after: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
            ([_USER], []),
            ([plain], []),
            ([_USER], [_CALL]),
            ([_ANSWER], [_CALL]),
            ([_ANSWER, _USER], [_CALL]),
        ]
        for messages, calls in after:
            tails = []
            for bare in (True, False):
                try:
                    tails.append(offered._tail(messages, calls, without_tools=bare))
                except ChatTemplateError:
                    tails.append("")
            if tails[0] != tails[1]:
                return False
        return True

    def _tail(
        self, messages: Sequence[dict[str, Any]], calls: Sequence[Mapping[str, Any]], *, without_tools: bool
    ) -> str:
        said: dict[str, Any] = {"role": "assistant", "content": _MARKER}
        if calls:
            try:
                calling = {**said, "tool_calls": self._stand_ins(calls)}
                rendered = self._render([_USER, calling, *messages], without_tools=without_tools)
            except ChatTemplateError:
                if len(calls) == 1:
                    raise
                # Some templates take one call a reply.
                calling = {**said, "tool_calls": self._stand_ins(calls[:1])}
                rendered = self._render([_USER, calling, *messages], without_tools=without_tools)
        else:
            rendered = self._render([_USER, said, *messages], without_tools=without_tools)
        _, found, tail = rendered.rpartition(_MARKER)
        if not found:
            raise ChatTemplateError(
                "the chat template rewrites an earlier assistant message, so a conversation cannot be continued"
            )
        return tail

    def _stand_ins(self, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return calls of the same ids and names, whose argument is the marker."""
        as_text = self._root._arguments_as_text
        arguments = _Marker(f'{{"a": "{_MARKER}"}}') if as_text else {"a": _MARKER}
        return [
            {**call, "function": {**(call.get("function") or {}), "arguments": arguments}}
            for call in calls_of({"tool_calls": calls})
        ]

    def _after_calls(self, tail: str, closed: bool, answered: bool) -> str:
        """Return what follows a turn that called tools: `tail` without what ends the stand-in of its last call, and
        without the turn's close if the sampled ids hold it."""
        found = self._first_close(tail)
        if found is None:
            raise ChatTemplateError(
                f"the chat template goes on after a tool call with {tail[:24]!r}, where no token ends the turn, so a "
                "conversation cannot be continued there"
            )
        place, _, text = found
        # A close that is the next message's header is another one where no tool's answer follows.
        own = not self._root._closes_with_next or answered
        return tail[place + len(text) :] if closed and own else tail[place:]

    def _check_shown(self, role: str, answered: bool) -> None:
        """Raise ChatTemplateError where the template writes nothing of a message of this role; asked once a role."""
        if answered and role == "tool":
            shown = self._after_calls(self._after([{**_ANSWER, "content": "seen"}], [_CALL]), True, True)
        else:
            shown = self._render([_USER, {"role": "assistant", "content": "-"}, {"role": role, "content": "seen"}])
        if "seen" not in shown:
            raise ChatTemplateError(
                f"the chat template leaves out messages of the role {role}: set "
                "actor_rollout_ref.rollout.observation_role to one it shows"
            )
        self._shown.add((role, answered))

    # ---- the pieces of a conversation that is edited ----

    @cached_property
    def _pieces(self) -> _Pieces:
        start, asked = self._render([_USER], generate=False), self._render([_USER])
        past = self._render([_USER, {"role": "assistant", "content": _MARKER}, _USER], generate=False)
        # Without a generation prompt, replies must need no header either (`[INST]...[/INST]reply`).
        bare = asked == start and past[len(start) :].lstrip().startswith(_MARKER)
        taken_apart = asked.startswith(start) and past.startswith(start) and _MARKER in past
        if not taken_apart or (asked == start and not bare):
            raise ChatTemplateError(
                "the chat template writes a message differently once others follow it: use context_template causal"
            )
        generation, header = asked[len(start) :], past[len(start) : past.index(_MARKER)]
        ids = self.encode(generation)
        if self.encode(asked) != self.encode(start) + ids:
            raise ChatTemplateError(
                f"the generation prompt {generation!r} does not begin with a token of its own, so a conversation "
                "cannot be put together "
                "from pieces: use context_template causal"
            )
        return _Pieces(start, generation, ids, self.encode(header))

    @property
    def generation(self) -> list[int]:
        """The ids of the generation prompt alone."""
        return self._pieces.generation_ids

    @property
    def opens_thought(self) -> bool:
        """Whether the generation prompt already opens a thought, so that replies begin inside it."""
        return self._pieces.generation.rstrip().endswith("<think>")

    def head(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Return the ids of a conversation's first messages, without a generation prompt."""
        return self._encode_cut(self._without_generation(self._render(messages)))

    def follow(
        self, messages: Sequence[dict[str, Any]], *, closed: bool | None, calls: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the ids of messages without a generation prompt: after an assistant turn that is `closed` or not and
        made `calls`, the rest of its close included; or, for None, after the user message that ends the opening."""
        if closed is not None:
            return self._encode_cut(self._without_generation(self._after_assistant(messages, closed, calls)))
        rendered, start = self._render([_USER, *messages]), self._pieces.start
        if not rendered.startswith(start):
            raise ChatTemplateError(
                "the chat template writes a message differently once others follow it: use context_template causal"
            )
        return self._encode_cut(self._without_generation(rendered[len(start) :]))

    def assistant(self, text: str) -> list[int]:
        """Return the ids of an assistant message of the past: its header and `text`, not closed yet."""
        return self._pieces.header_ids + self._encode_cut(self._inert(text, by_policy=True))

    def reply(self, message: Mapping[str, Any]) -> list[int]:
        """Return the ids of an assistant message as if the policy had sampled it: text and calls as the template writes
        them, and the token that closes the turn. Raises ChatTemplateError where the template writes no calls."""
        content, calls = str(message.get("content") or ""), message.get("tool_calls")
        if not calls:
            closing = self._close[0] if self._close is not None else self.tokenizer.eos_token_id
            return [*self._encode_cut(self._inert(content, by_policy=True)), closing]
        rendered = self._render([_USER, {**message, "content": _MARKER}], generate=False)
        _, found, tail = rendered.rpartition(_MARKER)
        if not found and not content:
            # Some templates write calls in the place of a text, and not behind it.
            asked, rendered = self._render([_USER]), self._render([_USER, {**message, "content": ""}], generate=False)
            found, tail = asked, rendered[len(asked) :] if rendered.startswith(asked) else ""
        close = self._first_close(tail) if found else None
        if close is None:
            raise ChatTemplateError("the chat template does not write tool calls behind the text of a message")
        called = tail[: close[0]] if content else tail[: close[0]].lstrip("\n")
        return [*self._encode_cut(self._inert(content, by_policy=True) + called), close[1]]

    def _without_generation(self, rendered: str) -> str:
        generation = self._pieces.generation
        if not rendered.endswith(generation):
            raise ChatTemplateError(
                f"the chat template ends with {rendered[-24:]!r} here and with {generation!r} elsewhere: use "
                "context_template causal"
            )
        return rendered.removesuffix(generation)

    def clip(self, text: str, max_tokens: int) -> str:
        """Return `text` cut to `max_tokens` tokens: its head and tail are kept and the gap is named, or the head alone
        where that does not fit. Half characters (lone surrogates) are replaced."""
        raw = text.encode("utf-8", "replace")
        text = raw.decode()
        if len(raw) <= max_tokens:  # a token is at least one byte
            return text
        ids = self.encode_inert(text)
        if len(ids) <= max_tokens:
            return text
        room = max_tokens - len(self.encode(_gap(len(ids))))
        named = room >= 2
        room = room if named else max_tokens
        while room > 0:
            head, tail = (room - room // 2, room // 2) if named else (room, 0)
            # A character may be several tokens: what the cut leaves of one is taken away.
            begin = self.tokenizer.decode(ids[:head]).rstrip("\ufffd")
            end = self.tokenizer.decode(ids[len(ids) - tail :]).lstrip("\ufffd")
            clipped = f"{begin}{_gap(len(ids) - room)}{end}" if named else begin
            over = len(self.encode_inert(clipped)) - max_tokens
            if over <= 0:
                return clipped
            room -= over
        return ""


def _any_of(spellings: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern of these texts, longest first; None if there is none of two characters or more, which a cut
    could part."""
    found = sorted({text for text in spellings if len(text) > 1}, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, found))) if found else None


def _gap(tokens: int) -> str:
    return f"\n[{tokens} tokens cut]\n"


class PlainTokenizer:
    """A tokenizer for models whose own is not at hand: about four characters a token, exactly reversible, ChatML around
    messages.

    It serves to hold the limits of a context whose conversation is sent as chat messages; its ids are seen by nobody.
    An id packs the code points of the characters that it stands for.
    """

    eos_token = _END
    eos_token_id = _SPECIAL[_END]

    def apply_chat_template(self, conversation: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Return the conversation as ChatML, tools and calls as JSON."""
        tools = f"{_START}system\n{json.dumps(kwargs['tools'])}{_END}\n" if kwargs.get("tools") else ""
        text = tools + "".join(f"{_START}{message['role']}\n{_plain(message)}{_END}\n" for message in conversation)
        return f"{text}{_START}assistant\n" if kwargs.get("add_generation_prompt") else text

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text."""
        ids: list[int] = []
        for part in _SPLIT.split(text):
            if part in _SPECIAL:
                ids.append(_SPECIAL[part])
            else:
                ids += [_packed(part[i : i + CHARS_PER_TOKEN]) for i in range(0, len(part), CHARS_PER_TOKEN)]
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids."""
        special = {} if skip_special_tokens else {number: text for text, number in _SPECIAL.items()}
        return "".join(special.get(i, "") if i < 0 else _unpacked(i) for i in token_ids)


def _plain(message: Mapping[str, Any]) -> str:
    calls = calls_of(message)
    return text_of(message) + (f"\n{json.dumps(calls, ensure_ascii=False)}" if calls else "")


def _packed(chars: str) -> int:
    # The leading 1 keeps a leading NUL.
    number = 1
    for char in chars:
        number = number << _BITS | ord(char)
    return number


def _unpacked(number: int) -> str:
    chars = []
    while number > 1:
        chars.append(chr(number & (1 << _BITS) - 1))
        number >>= _BITS
    return "".join(reversed(chars))
