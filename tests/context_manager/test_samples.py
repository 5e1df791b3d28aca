"""Snapshots: frozen calls, merged where one goes on another, and samples of them within limits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from context_manager.samples import UNTOUCHED, ChainOpening, SampleLimits, SnapshotRecorder

ROOMY = SampleLimits(1_000, 1_000)
IDS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def recorded(calls):
    recorder = SnapshotRecorder()
    for step, (prompt, sampled) in enumerate(calls):
        recorder.record(list(prompt), sampled, [-step - i / 10 for i in range(len(sampled))], step=step)
    return recorder


@settings(max_examples=60, deadline=None)
@given(first=IDS, turns=st.lists(st.tuples(IDS, IDS, st.booleans()), min_size=1, max_size=8))
def test_merging_changes_no_token(first, turns):
    calls, prompt = [], first
    for follow, sampled, edited in turns:
        calls.append((prompt, sampled))
        prompt = [*prompt[: len(prompt) // 2], *follow] if edited else [*prompt, *sampled, *follow]
    recorder = recorded(calls)
    assert [(s.prompt_ids, s.sampled_ids) for s in recorder.snapshots] == [(list(p), s) for p, s in calls]
    samples, dropped = recorder.samples(ROOMY)
    assert not dropped
    found = {step: sample for sample in samples for step in sample.steps}
    for step, (sent, sampled) in enumerate(calls):
        whole = found[step].prompt_ids + found[step].response_ids
        start = len(found[step].prompt_ids) + found[step].step_ids.index(step)
        assert whole[:start] == sent and whole[start : start + len(sampled)] == sampled
    assert sum(sum(sample.response_mask) for sample in samples) == sum(len(s) for _, s in calls)


def test_untrained_calls_are_kept_as_snapshots_and_interrupt_nothing():
    recorder = SnapshotRecorder()
    recorder.record([1], [2], [-0.1], step=0)
    recorder.record([1, 2, 7], [8], [-0.1], step=1, trained=False)
    recorder.record([1, 2, 3], [4], [-0.1], step=2)
    (sample,) = recorder.samples(ROOMY)[0]
    assert sample.response_ids == [2, 3, 4] and sample.step_ids == [0, -1, 2]
    assert (recorder.snapshots[1].prompt_ids, recorder.snapshots[1].sampled_ids) == ([1, 2, 7], [8])


@pytest.mark.parametrize(
    ("limits", "name"),
    [(SampleLimits(2, 3), "response_too_long"), (SampleLimits(1_000, 3), None), (SampleLimits(2, 4), None)],
)
def test_what_a_first_prompt_has_too_much_goes_to_the_response_and_only_what_is_too_long_in_all_is_dropped(
    limits, name, caplog
):
    samples, dropped = recorded([([1, 2, 3, 4], [5, 6]), ([9], [8])]).samples(limits)
    assert dropped == ({name: 1} if name else {})
    assert len(samples) == (1 if name else 2)
    if name:
        assert "data.max_response_length allows 3" in caplog.text and samples[0].share == 1.0
    else:
        assert samples[0].prompt_ids + samples[0].response_ids == [1, 2, 3, 4, 5, 6]


def test_a_training_opening_that_is_too_long_or_has_no_place_drops_the_sample_by_name():
    recorder = recorded([([1, 2, 3], [4]), ([9, 2, 3], [5])])
    samples, dropped = recorder.samples(SampleLimits(4, 10), [1, 2], [50, 51])
    assert dropped == {"opening_edited": 1} and [s.prompt_ids for s in samples] == [[50, 51, 3]]
    samples, dropped = recorder.samples(SampleLimits(4, 10), [1, 2], [50, 51, 52, 53])
    assert dropped == {"opening_edited": 1, "prompt_too_long": 1} and samples == []


@pytest.mark.parametrize(
    ("choice", "count", "kept"),
    [
        ("first", 2, [0, 1]),
        ("last", 2, [5, 6]),
        ("spread", 3, [0, 3, 6]),
        ("spread", 1, [6]),
        ("spread", 7, list(range(7))),
    ],
)
def test_no_more_samples_than_asked_for_and_the_ones_that_were_asked_for(choice, count, kept):
    recorder = recorded([([step], [7]) for step in range(7)])
    samples, dropped = recorder.samples(SampleLimits(10, 10, count, choice))
    assert [sample.prompt_ids[0] for sample in samples] == kept
    assert dropped == ({"over_max_samples": 7 - count} if count < 7 else {})
    assert sum(sample.share for sample in samples) == pytest.approx(1)


def test_log_probs_and_ids_must_pair_up():
    with pytest.raises(ValueError, match="step 4: 2 sampled ids but 1 log-probs"):
        SnapshotRecorder().record([1], [2, 3], [-0.1], step=4)


def test_a_call_goes_on_the_chain_that_the_caller_names_if_it_begins_with_it():
    recorder = SnapshotRecorder()
    first = recorder.record([1], [2], [-0.1], step=0)
    twin = recorder.record([1], [2], [-0.1], step=1)
    recorder.record([1, 2, 3], [4], [-0.1], step=2, chain=first)
    recorder.record([1, 2, 5], [6], [-0.1], step=3, chain=first)
    recorder.record([1, 2, 3], [4], [-0.1], step=4, chain=twin)
    assert [sample.steps for sample in recorder.samples(ROOMY)[0]] == [[0, 2], [1, 4], [3]]


def test_each_chain_is_stripped_of_its_own_opening_and_others_are_left_as_they_were_sent():
    recorder = SnapshotRecorder()
    recorder.record([1, 2, 3], [4], [-0.1], step=0, opening=ChainOpening([1, 2], [50]))
    recorder.record([7, 8], [9], [-0.1], step=1, opening=UNTOUCHED)
    recorder.record([1, 2, 3, 4, 5], [6], [-0.1], step=2, opening=UNTOUCHED)
    recorder.record([9, 2, 3], [5], [-0.1], step=3, opening=ChainOpening([1, 2], [50]))
    samples, dropped = recorder.samples(ROOMY)
    assert [(s.prompt_ids, s.response_ids) for s in samples] == [([50, 3], [4, 5, 6]), ([7, 8], [9])]
    assert dropped == {"opening_edited": 1}
