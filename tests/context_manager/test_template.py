"""What every template has from its base: observations, instructions, pins, samples within limits, and hooks."""

import sys
from types import SimpleNamespace

import pytest

from agentevolver.utils.errors import ConfigError
from context_manager.registry import TEMPLATES, checked_template
from context_manager.settings import ContextSettings
from context_manager.template import ContextFull, ContextLimits, ContextTemplate
from tests.context_manager.episodes import begin, say, shown, turn

EVERY = pytest.mark.parametrize("template", [*TEMPLATES.values(), ContextTemplate], ids=[*TEMPLATES, "base"])


@EVERY
@pytest.mark.parametrize("role", ["user", "tool"])
def test_the_role_of_what_the_environment_says_can_be_replaced(renderer, roomy, template, role):
    context = begin(template, renderer, roomy, ContextSettings(observation_role=role))
    say(context, "act", 0)
    context.observe([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}])
    assert [message["role"] for message in context.messages[-2:]] == [role, role]
    assert [message.role for message in context.timeline.messages[-2:]] == [role, role]


@EVERY
@pytest.mark.parametrize(("role", "left"), [("user", ["seen\n\nand now"]), ("tool", ["seen", "and now"])])
def test_an_instruction_after_an_observation_of_the_user_is_part_of_that_message(renderer, roomy, template, role, left):
    context = begin(template, renderer, roomy)
    say(context, "act", 0)
    context.observe([{"role": role, "content": "seen"}])
    context.tell("and now")
    assert [message["content"].removeprefix("[m2] ") for message in context.messages[3:]] == left
    assert [message.content.removeprefix("[m2] ") for message in context.timeline.messages[1:]] == left
    prompt = shown(context, context.next_prompt())
    assert "seen" in prompt and "and now" in prompt


@EVERY
def test_a_pin_moves_from_one_message_of_the_policys_to_the_next(renderer, roomy, template):
    context = begin(template, renderer, roomy)
    with pytest.raises(RuntimeError, match="has not spoken yet"):
        context.pin()
    say(context, "plan a", 0)
    context.pin()
    context.tell("go")
    before = context.next_prompt()
    turn(context, "act", "seen", 1)
    say(context, "plan b", 2)
    context.pin()
    assert [message.content for message in context.timeline.messages if message.pinned] == ["plan b"]
    context.tell("go")
    assert context.next_prompt()[: len(before)] == before, "a pin changes no token"


@EVERY
def test_the_reserve_of_the_reply_is_part_of_the_guard(renderer, template):
    roomy = begin(template, renderer, ContextLimits(2_000, 5_000, 9_000, 32, 400))
    turn(roomy, "act", "x" * 300, 0)
    needed = len(roomy.next_prompt())
    exact = begin(template, renderer, ContextLimits(2_000, needed - roomy.timeline.opening_length + 32, 9_000, 32, 400))
    turn(exact, "act", "x" * 300, 0)
    assert len(exact.next_prompt()) == needed
    short = begin(template, renderer, ContextLimits(2_000, needed - roomy.timeline.opening_length + 31, 9_000, 32, 400))
    turn(short, "act", "x" * 300, 0)
    with pytest.raises(ContextFull, match="response tokens"):
        short.next_prompt()


def test_a_users_own_template_says_itself_which_keys_it_reads(monkeypatch):
    class Own(ContextTemplate):
        reads = frozenset({"summary_tokens"})

    monkeypatch.setitem(sys.modules, "own_templates", SimpleNamespace(Own=Own))
    chosen = {"context_template": "own_templates:Own"}
    assert checked_template(ContextSettings(**chosen, summary_tokens=64)) is Own
    with pytest.raises(ConfigError, match="think_style is only read by reasoning"):
        checked_template(ContextSettings(**chosen, think_style="granite"))


@EVERY
def test_an_opening_of_any_length_is_too_long_at_once_and_gives_no_sample(renderer, roomy, template):
    context = template(renderer, roomy)
    opening = [{"role": "user", "content": "line of a log file " * 100_000}]
    with pytest.raises(ContextFull, match="max_prompt_length=10000"):
        context.start(opening)
    assert context.messages and context.samples() == []
