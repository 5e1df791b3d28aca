"""What an agent wants of calls is never forced: a reply that does not heed it is given as it is, and counted."""

import pytest

from agentevolver.rollout.gateway import chat, messages, responses
from agentevolver.rollout.tools.formats import tool_format
from context_manager.chat import ChatRenderer
from tests.agentevolver.rollout.gateway.harness import ScriptedEngine, rollout, user
from tests.real_tokenizers import build_real

FUNCTION = {"name": "search", "description": "looks up", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
TOOLS = {
    "chat": {"tools": [{"type": "function", "function": FUNCTION}]},
    "responses": {"tools": [{"type": "function", **FUNCTION}]},
    "messages": {"tools": [{"name": "search", "input_schema": FUNCTION["parameters"]}], "max_tokens": 99},
}
CHOICES = [
    ("chat", {"tool_choice": "none"}, {}),
    ("chat", {"tool_choice": "required"}, {"tool_choice": 1}),
    ("chat", {"tool_choice": {"type": "function", "function": {"name": "other"}}}, {"tool_choice": 3}),
    ("responses", {"tool_choice": {"type": "function", "name": "search"}}, {"tool_choice": 1}),
    ("responses", {"parallel_tool_calls": False}, {"parallel_tool_calls": 1}),
    ("messages", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, {"parallel_tool_calls": 1}),
    ("messages", {"tool_choice": {"type": "any"}}, {"tool_choice": 1}),
    ("messages", {"tool_choice": {"type": "tool", "name": "other"}}, {"tool_choice": 3}),
]


@pytest.mark.parametrize(("api", "fields", "missed"), CHOICES)
async def test_a_reply_that_does_not_heed_a_choice_is_counted(api, fields, missed):
    tokenizer = build_real("qwen2_5")
    said = [f"{CALL}\n{CALL}", CALL, "nothing to call"]
    replies = [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in said]
    played = rollout(ChatRenderer(tokenizer), ScriptedEngine(replies), tool_format("hermes", tokenizer))
    for number in range(3):
        body = {**TOOLS[api], **fields, "messages": [user(f"go {number}")], "input": f"go {number}"}
        if api == "responses":
            request = responses.read(body, played.remembered)
        else:
            request = {"chat": chat, "messages": messages}[api].read(body)
        completion = await played.complete(request)
        assert len(completion.calls) == (0 if fields.get("tool_choice") == "none" else 2 - number)
    del played.ignored["input"], played.ignored["messages"]
    assert played.ignored == missed
