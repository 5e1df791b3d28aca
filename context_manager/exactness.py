"""Checks whether prompts equal the chat template's rendering of the whole conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.registry import template_class
from context_manager.settings import ContextLimits, ContextSettings
from context_manager.sliding_window import TrimmingTemplate
from context_manager.template import ContextTemplate

Role = Literal["user", "tool", "calls", "calls and user"]
# How the environment answers. "calls and user": tool answers followed by a user message.
ROLES: tuple[Role, ...] = ("user", "tool", "calls", "calls and user")
# Chat templates may render the past differently: drop thoughts, move the system message, close an empty thought. A
# model served with the template then reads other tokens than in training.
TURNS = 3
_LIMITS = ContextLimits(1 << 20, 1 << 20, 1 << 22, 1, 1 << 16)
_OPENING = [{"role": "system", "content": "You act."}, {"role": "user", "content": "Go on."}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string", "description": "what"}}},
    },
}
_SHOWN_CHARS, _BEFORE_CHARS = 60, 12


@dataclass(frozen=True, slots=True)
class TemplateDrift:
    """The first difference between a prompt and the template's rendering."""

    turn: int  # before this reply, from 1
    sent: str
    rendered: str

    def __str__(self) -> str:
        return f"before reply {self.turn} the policy reads {self.sent!r} where the template has {self.rendered!r}"


def check_template(
    renderer: ChatRenderer, settings: ContextSettings, tools: Sequence[Mapping[str, Any]] | None = None
) -> list[str]:
    """Return warnings about a context template with this chat template, one line each.

    `tools`: the policy's, if calls are in the model's own format; empty if they are not known yet. Raises
    ChatTemplateError.
    """
    roles: list[Role] = ["calls", "calls and user"] if tools is not None else []
    if settings.observation_role is not None or tools is None:
        roles.append(settings.observation_role or "user")
    warnings = []
    if tools is not None and renderer.for_tools(tools or [_TOOL]).render(_OPENING) == renderer.render(_OPENING):
        warnings.append(
            "the chat template does not show the model its tools: a policy that was not trained on these very tools "
            "cannot know what to call, set tool_format to none for it"
        )
    for role in roles:
        try:
            drift = find_drift(renderer, settings, role, tools or ())
        except ChatTemplateError as error:
            if role != "calls and user":
                raise
            warnings.append(f"with {_name(settings, role)} an episode would fail: {error}")
            continue
        if drift is not None:
            exact = _exact(renderer, role, tools or ())
            warnings.append(
                f"with {_name(settings, role)} the chat template renders earlier turns differently than sampled: "
                f"{drift}; " + (f"identical with {exact}" if exact else "no built-in context_template is identical")
            )
    return warnings


def find_drift(
    renderer: ChatRenderer, settings: ContextSettings, role: Role, tools: Sequence[Mapping[str, Any]] = ()
) -> TemplateDrift | None:
    """Return the first drift in an episode whose environment answers as `role`, or None; raises ChatTemplateError."""
    calls = role.startswith("calls")
    if calls:
        renderer = renderer.for_tools(tools or [_TOOL])
    context = template_class(settings.context_template)(renderer, _LIMITS, settings)
    context.start(_OPENING)
    past = list(context.messages)
    drift = None
    for turn in range(1, TURNS + 1):
        prompt = context.next_prompt()
        drift = drift or _compare(renderer, turn, prompt, past)
        reply = _reply(renderer, turn, calls=calls)
        sampled = _sampled(renderer, past, reply)
        context.record(sampled, [0.0] * len(sampled), turn)
        if calls:
            context.called(reply["tool_calls"])
        told = len(context.messages)
        context.observe(_answers(turn, role))
        past += [reply, *context.messages[told:]]
    prompt = context.next_prompt()
    drift = drift or _compare(renderer, TURNS + 1, prompt, past)
    _edit(context)
    return drift


def _exact(renderer: ChatRenderer, role: Role, tools: Sequence[Mapping[str, Any]]) -> str:
    found = []
    for name in ("causal", "reasoning"):
        for other in ROLES[:2] if role in ROLES[:2] else (role,):
            settings = ContextSettings(context_template=name)
            try:
                if find_drift(renderer, settings, other, tools) is None:
                    found.append(_name(settings, other))
            except ChatTemplateError:
                continue
    return ", ".join(found)


def _name(settings: ContextSettings, role: Role) -> str:
    said = {
        "calls": "answers of tools",
        "calls and user": "answers of tools and messages of the user's after them",
    }.get(role, f"observation_role {role}")
    return f"context_template {settings.context_template} and {said}"


def _compare(
    renderer: ChatRenderer, turn: int, prompt: Sequence[int], past: Sequence[Mapping[str, Any]]
) -> TemplateDrift | None:
    rendered = renderer.opening([dict(message) for message in past])
    if list(prompt) == rendered:
        return None
    sent, written = renderer.tokenizer.decode(prompt), renderer.tokenizer.decode(rendered)
    at = _same(sent, written)
    at = max(0, at - _BEFORE_CHARS)
    return TemplateDrift(turn, sent[at : at + _SHOWN_CHARS], written[at : at + _SHOWN_CHARS])


def _reply(renderer: ChatRenderer, turn: int, *, calls: bool) -> dict[str, Any]:
    said = "" if calls else f"Act {turn}."
    reply: dict[str, Any] = {"role": "assistant", "content": said}
    if _has_channels(renderer):
        reply["thinking"] = f"Weigh {turn}."
    elif _knows_thoughts(renderer):
        reply["content"] = f"<think>\nWeigh {turn}.\n</think>\n\n{said}"
    if calls:
        function = {"name": "look", "arguments": '{"at": "it"}'}
        reply["tool_calls"] = [{"id": f"c{turn:08d}", "type": "function", "function": function}]
    return reply


def _has_channels(renderer: ChatRenderer) -> bool:
    shown = renderer.render([*_OPENING, {"role": "assistant", "content": "-", "thinking": "weigh"}], generate=False)
    return "weigh" in shown


def _knows_thoughts(renderer: ChatRenderer) -> bool:
    begun = renderer.render(_OPENING).rstrip()
    if begun.endswith(("<think>", "</think>")):
        return begun.endswith("<think>")
    said = {"role": "assistant", "content": "<think>\nweigh\n</think>\n\nact"}
    return str(said["content"]) not in renderer.render([*_OPENING, said, {"role": "user", "content": "-"}])


def _answers(turn: int, role: Role) -> list[dict[str, Any]]:
    if not role.startswith("calls"):
        return [{"role": role, "content": f"Seen {turn}."}]
    answer = {"role": "tool", "tool_call_id": f"c{turn:08d}", "name": "look", "content": f"Seen {turn}."}
    return [answer] if role == "calls" else [answer, {"role": "user", "content": "And then?"}]


def _sampled(renderer: ChatRenderer, past: Sequence[Mapping[str, Any]], reply: dict[str, Any]) -> list[int]:
    said = [dict(message) for message in past]
    prompt, whole = renderer.render(said), renderer.render([*said, reply], generate=False)
    text = whole[_same(prompt, whole) :]
    if not whole.startswith(prompt):
        # The template renders an earlier reply differently from how its generation prompt begins one.
        text = text.rpartition("</think>")[2]
        thought = str(reply["content"]).partition("</think>")
        if thought[1]:
            text = f"{thought[0].removeprefix('<think>')}</think>{text}"
        if not prompt.rstrip().endswith("<think>") and thought[1]:
            text = f"<think>{text}"
    return renderer.as_sampled(text, reply.get("tool_calls", ()))


def _same(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _edit(context: ContextTemplate) -> None:
    # Some chat templates do not support a shortened conversation: they raise here.
    if isinstance(context, TrimmingTemplate):
        context.policy_call("probe", "Say more.", context.timeline.messages)
        context.timeline.drop(context.timeline.older(1))
        context.timeline.note("Before: acted.")
        context.timeline.prompt()


__all__ = ["ROLES", "TemplateDrift", "check_template", "find_drift"]
