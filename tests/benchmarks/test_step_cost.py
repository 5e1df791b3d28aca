"""The table of a benchmark's steps: it adds up, and its speeds are those of the formulas it names."""

import pytest

from agentevolver.launcher.memory import DecoderSize
from benchmarks.step_cost import forward_flops, rows

POLICY = DecoderSize(hidden=8, intermediate=16, layers=2, heads=4, kv_heads=2, vocabulary=100, tied=True)
PEAK = 1e9


def record(update, **timing):
    seconds = {
        "submit": 1.0,
        "gen": 10.0,
        "gen/sleep": 2.0,
        "collect": 0.5,
        "old_log_prob": 4.0,
        "update_actor": update,
        "untimed": 0.25,
    }
    seconds = {**seconds, **timing}
    step = sum(value for name, value in seconds.items() if "/" not in name)
    return {
        **{f"timing_s/{name}": value for name, value in seconds.items()},
        "timing_s/step": step,
        "timing_s/advantage_processor": 77.0,  # a part of a phase by another name: counted nowhere
        "rollout/action_tokens": 400.0,
        "perf/total_num_tokens": 1000.0,
        "prompt_length/mean": 30.0,
        "response_length/mean": 70.0,
    }


def by_name(body):
    return {row.name: row for row in body}


def test_the_rows_add_up_to_the_step_and_the_rest_is_untimed():
    records = [record(100.0), record(5.0), record(7.0)]
    body = rows(records, POLICY, lora=False, peak=PEAK)
    *parts, step = body
    assert step.name == "step" and step.seconds == tuple(r["timing_s/step"] for r in records)
    for i in range(3):
        assert sum(row.seconds[i] for row in parts) == pytest.approx(step.seconds[i])
    named = by_name(body)
    assert named["untimed"].seconds == (0.25,) * 3
    assert named["rollouts"].seconds == (8.0,) * 3 and named["vLLM put to sleep"].seconds == (2.0,) * 3
    assert named["update"].usual == 6.0, "the first step is left out"


def test_speeds_are_those_of_the_formulas():
    named = by_name(rows([record(5.0)], POLICY, lora=False, peak=PEAK))
    flops = forward_flops(POLICY, 1000, 100)
    assert named["rollouts"].tokens_per_s == 50 and named["rollouts"].mfu is None
    assert named["old log-probs"].tokens_per_s == 250 and named["old log-probs"].mfu == pytest.approx(flops / 4 / PEAK)
    assert named["update"].mfu == pytest.approx(3 * flops / 5 / PEAK)
    assert by_name(rows([record(5.0)], POLICY, lora=True, peak=PEAK))["update"].mfu == pytest.approx(
        2 * flops / 5 / PEAK
    )
    assert by_name(rows([record(5.0)], POLICY, lora=False, peak=None))["update"].mfu is None


def test_what_lies_between_steps_is_no_part_of_them():
    records = [record(5.0), record(5.0) | {"timing_s/between_steps": 3.0}]
    *_, step, between = rows(records, POLICY, lora=False, peak=None)
    assert (step.name, between.name, between.seconds) == ("step", "between steps", (3.0,))
