"""All templates, both flows, several model families: what is trained on is what the engine saw and sampled, token for
token."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentevolver.types import StopReason
from context_manager.registry import TEMPLATES
from context_manager.settings import ContextSettings
from context_manager.template import ContextLimits
from experience_manager.guide import Guidance, Injection
from tests.agentevolver.rollout.flows.harness import FLOWS, play

SHORTENING = ("sliding_window", "self_managed")
WORD = st.text(st.characters(min_codepoint=32, max_codepoint=1_000, exclude_characters="<|"), max_size=12)
SAID = st.one_of(
    WORD,
    st.builds("<think>{}</think>{}".format, WORD, WORD),
    st.builds("{}</think>\n\n{}".format, WORD, WORD),
    st.builds("<think>{}".format, WORD),
    st.builds(
        "{}<context>\nremove m{} m{}\ncompress m{}: x\nkeep m{}\n</context>".format, WORD, *[st.integers(0, 9)] * 4
    ),
    st.builds("remove m{}\nkeep m{}".format, st.integers(0, 30), st.integers(0, 30)),
)
SEEN = st.one_of(WORD, st.just("z" * 90))
OBSERVATION = st.tuples(st.sampled_from(["user", "tool"]), st.one_of(SEEN, st.tuples(SEEN, SEEN)), st.booleans())


@st.composite
def episodes(draw):
    """Replies as (text or raw ids, special ones among them, closed), observations, limits that may be tight, how many
    actions."""
    raw = st.lists(st.integers(0, 261), min_size=1, max_size=12)
    replies = draw(st.lists(st.tuples(st.one_of(SAID, raw), st.booleans()), min_size=1, max_size=5))
    limits = draw(
        st.sampled_from([ContextLimits(20_000, 20_000, 40_000, 64, 60), ContextLimits(900, 500, 1_300, 48, 60)])
    )
    return replies, draw(st.lists(OBSERVATION, min_size=1, max_size=3)), limits, draw(st.integers(1, 14))


def ids_of(renderer, replies):
    eos = renderer.tokenizer.eos_token_id
    # An engine stops at the close, so it stands at the end alone.
    plain = [
        renderer.encode(said) if isinstance(said, str) else [token for token in said if token != eos]
        for said, _ in replies
    ]
    return [[*ids, eos] if closed or not ids else ids for ids, (_, closed) in zip(plain, replies, strict=True)]


def check_samples(played, limits):
    """Whatever was sampled is trained on once, after the very prompt that it was sampled after, and nothing else is."""
    samples, steps = played.rollout.samples, played.rollout.trajectory.steps
    assert [step.index for step in steps] == list(range(len(played.engine.calls)))
    assert [(s.prompt_tokens, s.action_tokens) for s in steps] == [
        (len(prompt), len(ids)) for prompt, ids, _ in played.engine.calls
    ]
    seen = Counter()
    for sample in samples:
        whole = sample.prompt_ids + sample.response_ids
        assert [step >= 0 for step in sample.step_ids] == [m == 1 for m in sample.response_mask]
        assert all(p == 0.0 for p, m in zip(sample.log_probs, sample.response_mask, strict=True) if not m)
        assert sample.response_mask[-1] == 1, "what follows the last reply was never seen"
        assert (
            len(sample.prompt_ids) <= limits.max_prompt_tokens
            and len(sample.response_ids) <= limits.max_response_tokens
        )
        for step in sample.steps:
            prompt, sampled, log_probs = played.engine.calls[step]
            here = [i for i, s in enumerate(sample.step_ids) if s == step]
            assert here == list(range(here[0], here[0] + len(sampled)))
            start = len(sample.prompt_ids) + here[0]
            assert whole[:start] == prompt and whole[start : start + len(sampled)] == sampled
            assert [sample.log_probs[i] for i in here] == log_probs
            seen[step] += 1
    assert seen == Counter(range(len(steps))), "every step in one sample"
    if samples:
        assert sum(sample.share for sample in samples) == pytest.approx(1)
    for before, after in pairwise(samples):
        first = played.engine.calls[after.steps[0]][0]
        whole = before.prompt_ids + before.response_ids
        assert first[: len(whole)] != whole, "two samples that could have been one"


@pytest.mark.thorough
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("template", TEMPLATES)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=12
)
@given(episode=episodes())
def test_every_sampled_token_is_trained_on_once_after_the_prompt_it_was_sampled_after(
    renderer, template, flow, episode
):
    replies, observations, limits, max_steps = episode
    played = play(renderer, template, flow, ids_of(renderer, replies), observations, limits=limits, max_steps=max_steps)
    assert played.rollout.trajectory.stop_reason in (StopReason.MAX_STEPS, StopReason.CONTEXT_FULL)
    for (prompt, _, _), reserve in zip(played.engine.calls, played.engine.reserves, strict=True):
        assert len(prompt) + reserve <= limits.max_model_len
    if played.rollout.trajectory.outcome is not None:
        check_samples(played, limits)
    assert [step.kind == "action" for step in played.rollout.trajectory.steps].count(True) == len(played.env.given)


@pytest.mark.thorough
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("template", TEMPLATES)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=6
)
@given(episode=episodes(), experience=WORD)
def test_stripping_the_experience_changes_the_opening_of_samples_and_nothing_else(
    renderer, template, flow, episode, experience
):
    replies, observations, limits, max_steps = episode
    ids = ids_of(renderer, replies)

    def guide(keep):
        async def guided(opening):
            injected = f"<EXP>{experience}</EXP>"
            last = {**opening[-1], "content": injected + opening[-1]["content"]}
            return Injection([*opening[:-1], last], opening, Guidance(experience, keep=keep), injected)

        return guided

    kept = play(renderer, template, flow, ids, observations, limits=limits, max_steps=max_steps, guide=guide(True))
    gone = play(renderer, template, flow, ids, observations, limits=limits, max_steps=max_steps, guide=guide(False))
    assert kept.engine.calls == gone.engine.calls, "what is sampled with is the same"
    timeline = gone.context.timeline
    bare = play(renderer, template, flow, ids, observations, limits=limits, max_steps=0 if flow == "react" else 1)
    assert timeline.training_ids == bare.context.timeline.opening_ids, (
        "the training opening is the one without experience"
    )
    assert len(kept.rollout.samples) == len(gone.rollout.samples)
    for full, short in zip(kept.rollout.samples, gone.rollout.samples, strict=True):
        rest = len(timeline.opening_ids)
        assert full.prompt_ids[:rest] == timeline.opening_ids
        assert short.prompt_ids == timeline.training_ids + full.prompt_ids[rest:]
        assert (short.response_ids, short.response_mask) == (full.response_ids, full.response_mask)
        assert (short.log_probs, short.step_ids, short.share) == (full.log_probs, full.step_ids, full.share)


@pytest.mark.thorough
@pytest.mark.parametrize("template", SHORTENING)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=8
)
@given(episode=episodes())
def test_context_calls_that_are_not_to_be_trained_on_are_left_out_of_the_samples(renderer, template, episode):
    replies, observations, _, max_steps = episode
    options = ContextSettings(train_context_calls=False)
    limits = ContextLimits(900, 500, 1_300, 48, 60)
    played = play(
        renderer,
        template,
        "react",
        ids_of(renderer, replies),
        observations,
        limits=limits,
        max_steps=max_steps,
        options=options,
    )
    kinds = {step.index: step.kind for step in played.rollout.trajectory.steps}
    trained = Counter(step for sample in played.rollout.samples for step in sample.steps)
    assert trained == Counter(index for index, kind in kinds.items() if kind == "action")
    for sample in played.rollout.samples:
        for step in sample.steps:
            prompt = played.engine.calls[step][0]
            assert (sample.prompt_ids + sample.response_ids)[: len(prompt)] == prompt
