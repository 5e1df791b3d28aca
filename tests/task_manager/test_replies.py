"""What a reply wants to do, in every form in which models say it; what says nothing is no action."""

import json

import pytest

from agentevolver.llm.errors import LLMReply, LLMToolCall
from task_manager.actions import PlainFormat
from task_manager.replies import LONGEST, NoAction, read_action


class Written(PlainFormat):
    """Writes calls as a line."""

    def action_of_call(self, name, arguments):
        return None if name == "unknown" else " ".join([name, *map(str, arguments.values())])


FORMAT = Written("moon")
CALL = {"name": "note.tag", "arguments": {"id": "n2", "tag": "fun"}}
PYTHON = "```python\nprint(apis.api_docs.show_app_descriptions())\n```"
TAGGED = '<tool_call>\n{"name": "cd", "arguments": {"action": "a"}}\n</tool_call>'


def reply(text, *calls, finish="stop", thinking="", cached=False):
    return LLMReply(text, 1, 1, 0.0, cached, finish, tuple(calls), thinking)


@pytest.mark.parametrize(
    ("text", "action", "thought"),
    [
        ("note.list home", "note.list home", ""),
        ("<think>what is there?</think>\nnote.list home", "note.list home", "what is there?"),
        ("Let me look.\n```text\nnote.list home\n```\nThat should do.", "note.list home", ""),
        ('{"thought": "look", "action": "note.list home"}', "note.list home", "look"),
        ('Sure! {"action": "note.list home"} Good luck.', "note.list home", ""),
        (json.dumps({"thought": "look", "action": CALL}), "note.tag n2 fun", "look"),
        (
            json.dumps({"function": {"name": "note.tag", "arguments": '{"id": "n2", "tag": "fun"}'}}),
            "note.tag n2 fun",
            "",
        ),
        ("Sure! Here is what you asked for:\n\nnote.list home", "note.list home", ""),
        ('{"action": "move", "x": 3}', '{"action": "move", "x": 3}', ""),
        (TAGGED, TAGGED, ""),
        ("two fences\n```\na\n```\n```\nb\n```", "two fences\n```\na\n```\n```\nb\n```", ""),
        (PYTHON, PYTHON, ""),
    ],
)
def test_a_message_is_what_the_environment_is_to_get(text, action, thought):
    said = read_action(reply(text), FORMAT)
    assert (said.action, said.thought) == (action, thought)


@pytest.mark.parametrize("text", ["I look first.\n" + PYTHON, 'x = {"action": "a"}'])
def test_where_messages_have_fences_of_their_own_nothing_is_unwrapped(text):
    assert read_action(reply(text), FORMAT, fenced=True).action == text
    wrapped = json.dumps({"thought": "", "action": text})
    assert read_action(reply(wrapped), FORMAT, fenced=True).action == text
    assert read_action(reply(f"```json\n{wrapped}\n```"), FORMAT, fenced=True).action == text
    assert read_action(reply(f"Sure! My reply:\n\n{wrapped}\n\nI hope this helps!"), FORMAT, fenced=True).action == text


@pytest.mark.parametrize("arguments", [{"id": "n2", "tag": "fun"}, '{"id": "n2", "tag": "fun"}'])
def test_a_native_call_is_an_action_and_the_text_beside_it_the_thought(arguments):
    said = read_action(reply("I file  it.", LLMToolCall("note.tag", arguments), LLMToolCall("other", {})), FORMAT)
    assert (said.action, said.thought) == ("note.tag n2 fun", "I file it.")
    assert read_action(reply("", LLMToolCall("note.tag", arguments), thinking="hm"), FORMAT).thought == "hm"


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (reply(""), "empty"),
        (reply("<think>I wonder"), "ends inside its thinking"),
        (reply("note.list ho", finish="length"), "cut off"),
        (reply('{"thought": "look", "act'), "broken"),
        (reply('{"thought": "look", "action": ""}'), "action"),
        (reply('{"action": "a"}\n{"action": "b"}'), "different answers"),
        (reply("", LLMToolCall("note.tag", '{"id": ')), "no JSON object"),
        (reply("", LLMToolCall("unknown", {})), "no tool unknown"),
        (reply("x" * (LONGEST + 1)), "longer than"),
    ],
)
def test_what_says_nothing_that_can_be_done_is_no_action(said, problem):
    with pytest.raises(NoAction, match=problem):
        read_action(said, FORMAT)
