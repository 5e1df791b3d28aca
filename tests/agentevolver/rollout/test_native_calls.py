"""Rollouts with native tool calls: what is called, who answers, what the policy sees of it, and what is trained on."""

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentevolver.rollout.tool_calls import ToolUse
from agentevolver.rollout.tools.formats import tool_format
from agentevolver.types import StopReason, Trajectory
from context_manager.chat import ChatRenderer
from context_manager.template import ContextLimits
from tests.agentevolver.rollout.flows.harness import FLOWS, TASK, play
from tests.agentevolver.rollout.native import TOOLS, NativeEnv
from tests.agentevolver.rollout.tools.writing import WRITERS
from tests.real_tokenizers import build_family, build_real
from tests.tools_of_families import TOOL_FAMILIES

ROOMY = ContextLimits(30_000, 60_000, 90_000, 1_000, 400)


def called(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


LOOK, LOST, MISFIT, BROKEN = called("look", place="attic"), called("lok"), called("look"), '<tool_call>{"name"'
KINDS = {LOOK: "", LOST: "unknown_tool", MISFIT: "bad_arguments", BROKEN: "broken"}


@pytest.fixture(scope="session")
def qwen():
    return ChatRenderer(build_real("qwen2_5"))


def ids_of(renderer, *texts):
    return [[*renderer.encode(text), renderer.tokenizer.eos_token_id] for text in texts]


def roll(renderer, *texts, template="causal", flow="react", **more):
    more = {"limits": ROOMY, "max_steps": len(texts), "env": NativeEnv(), **more}
    use = ToolUse(tool_format("hermes", renderer.tokenizer))
    return play(renderer, template, flow, ids_of(renderer, *texts), [], tool_use=use, **more)


def test_a_call_is_one_action_and_its_answer_stands_under_its_id(qwen):
    played = roll(qwen, f"I look.\n{LOOK}", called("done"), "never said")
    trajectory, env = played.rollout.trajectory, played.env
    assert env.created[0]["native_tools"] is True
    assert trajectory.stop_reason is StopReason.FINISHED and [step.calls for step in trajectory.steps] == [1, 1]
    first, second = env.given
    assert first["content"] == "I look." and second["content"] is None
    (call,) = first["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"place": "attic"}'}
    roles = [message["role"] for message in trajectory.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert trajectory.messages[2] == {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    assert trajectory.messages[3]["tool_call_id"] == call["id"] and trajectory.messages[4]["content"] is None
    assert env.graded == trajectory.messages
    assert (
        trajectory.steps[0].action == f"I look.\n{LOOK}"
        and trajectory.steps[0].observation == "seen {'place': 'attic'}"
    )
    assert Trajectory.from_dict(json.loads(json.dumps(trajectory.to_dict()))) == trajectory


def test_where_agents_act_by_text_a_call_is_text_although_others_call_natively(qwen):
    played = roll(qwen, LOOK, by_text=frozenset({TASK.env_type}))
    assert "native_tools" not in played.env.created[0]
    assert [(action["content"], "tool_calls" in action) for action in played.env.given] == [(LOOK, False)]
    others = roll(qwen, LOOK, by_text=frozenset({"another"}))
    assert others.env.created[0]["native_tools"] is True and "tool_calls" in others.env.given[0]


def test_a_reply_without_a_call_goes_to_the_environment_as_it_is(qwen):
    played = roll(qwen, "  I think aloud. ", LOOK)
    assert played.env.given[0] == {"role": "assistant", "content": "  I think aloud. "}
    step = played.rollout.trajectory.steps[0]
    assert (step.calls, step.observation) == (0, "Call a tool.")


@pytest.mark.parametrize("reply", [LOST, MISFIT, BROKEN])
def test_a_call_that_cannot_be_carried_out_is_answered_here_and_counts(qwen, reply):
    played = roll(qwen, reply, LOOK, max_steps=2)
    trajectory = played.rollout.trajectory
    step = trajectory.steps[0]
    assert step.problems == (KINDS[reply],) and step.observation.startswith("error: ") and step.action == reply
    assert len(played.env.given) == 1 and trajectory.stop_reason is StopReason.MAX_STEPS
    assert trajectory.messages[3]["role"] == ("user" if reply == BROKEN else "tool")
    assert [sample.steps for sample in played.rollout.samples] == [[0, 1]], "it is trained on"


def test_tools_that_change_are_what_later_calls_are_checked_against(qwen):
    played = roll(qwen, LOOK, LOOK, called("done"), env=NativeEnv(later={0: TOOLS[1:]}))
    assert [step.problems for step in played.rollout.trajectory.steps] == [(), ("unknown_tool",), ()]
    assert [step.refused for step in played.rollout.trajectory.steps] == [False, True, False]


def test_an_environment_without_tools_fails_the_rollout_by_name(qwen):
    trajectory = roll(qwen, LOOK, env=NativeEnv(info={})).rollout.trajectory
    assert trajectory.stop_reason is StopReason.ENV_ERROR and "'fake' lists" in trajectory.error


pieces = st.lists(st.sampled_from([*KINDS, "words "]), min_size=1, max_size=4).map("".join)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(pieces, min_size=1, max_size=6),
    st.sampled_from(sorted(FLOWS)),
    st.sampled_from(["causal", "reasoning", "sliding_window", "self_managed"]),
    st.booleans(),
)
def test_whatever_is_said_every_call_is_answered_once_and_the_mask_is_what_was_sampled(
    qwen, texts, flow, template, tight
):
    limits = ContextLimits(3_000, 2_500, 5_500, 900, 300) if tight else ROOMY
    played = roll(qwen, *texts, flow=flow, template=template, limits=limits, max_steps=5)
    trajectory = played.rollout.trajectory
    assert trajectory.stop_reason in (StopReason.MAX_STEPS, StopReason.CONTEXT_FULL), trajectory.error
    made, answered = [], []
    for message in trajectory.messages:
        made += [call["id"] for call in message.get("tool_calls", ())]
        answered += [message["tool_call_id"]] if message["role"] == "tool" else []
    assert made == answered and len(set(made)) == len(made), "each call is answered once, in order"
    actions = [step for step in trajectory.steps if step.kind == "action"]
    assert sum(step.calls for step in actions if step.calls) >= len(made)
    sampled = Counter()
    for sample in played.rollout.samples:
        masked = [token for token, kept in zip(sample.response_ids, sample.response_mask, strict=True) if kept]
        assert len(sample.response_mask) == len(sample.log_probs) == len(sample.response_ids)
        sampled[tuple(masked)] += 1
    if template == "causal":
        assert sampled == Counter([tuple(token for _, ids, _ in played.engine.calls for token in ids)])
    else:
        assert sum(map(sum, (sample.response_mask for sample in played.rollout.samples))) == sum(
            len(ids) for _, ids, _ in played.engine.calls
        )


@pytest.mark.thorough
@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("template", ["causal", "reasoning"])
def test_every_family_plays_with_its_own_calls(family, template):
    made = WRITERS[family]
    tokenizer = made.tokenizer()
    use = ToolUse(tool_format(made.format, tokenizer))
    renderer = ChatRenderer(tokenizer, {}, use.ends)
    texts = [[("look", {"place": "attic"})], [("lok", {"place": "attic"})], [("done", {})]]
    replies = [made.ids(calls) for calls in texts]
    replies = [ids if renderer.ends_turn(ids) else [*ids, tokenizer.eos_token_id] for ids in replies]
    played = play(
        renderer, template, "react", replies, [], env=NativeEnv(), tool_use=use, limits=ROOMY, max_steps=len(replies)
    )
    trajectory = played.rollout.trajectory
    assert trajectory.stop_reason is StopReason.FINISHED, trajectory.error
    assert [step.problems for step in trajectory.steps] == [(), ("unknown_tool",), ()]
    assert json.loads(played.env.given[0]["tool_calls"][0]["function"]["arguments"]) == {"place": "attic"}
    assert all("look" in trajectory.steps[0].action and not step.truncated for step in trajectory.steps)
    prompts = [prompt for prompt, _, _ in played.engine.calls]
    assert "seen {'place': 'attic'}" in tokenizer.decode(prompts[1]) and "did you mean" in tokenizer.decode(prompts[2])
    if use.ends:
        assert played.engine.sampling[0]["stop_token_ids"] == sorted(use.ends)


@pytest.mark.parametrize(("template", "action"), [("reasoning", ""), ("causal", f"I could {LOOK}")])
def test_what_is_cut_inside_a_thought_that_the_prompt_opened_calls_nothing(template, action):
    renderer = ChatRenderer(build_family(TOOL_FAMILIES["qwen3_5_think"]))
    replies = [renderer.encode(f"I could {LOOK}"), *ids_of(renderer, f"Hm.</think>{LOOK}")]
    use = ToolUse(tool_format("hermes", renderer.tokenizer))
    played = play(renderer, template, "react", replies, [], env=NativeEnv(), tool_use=use, limits=ROOMY, max_steps=2)
    assert played.env.given[0] == {"role": "assistant", "content": action}, played.rollout.trajectory.error
    assert len(played.env.given[1]["tool_calls"]) == 1
