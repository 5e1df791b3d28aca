"""Signals, diagnoses and weaknesses: against histories made by hand, and against a fault that was planted."""

import pytest

from agentevolver.recipes.seal.diagnose import KINDS, diagnose
from agentevolver.recipes.seal.signals import Signals
from agentevolver.recipes.seal.weakness import WeaknessWindow, focused
from agentevolver.types import Diagnosis
from env_service.environments.pocket.quirks import quirks_of
from env_service.environments.pocket.tasks import make_task, task_ids
from env_service.environments.pocket.tools import TOOLS
from task_manager.actions import format_of
from tests.pocket_rollouts import rollout
from tests.trajectories import trajectory

POCKET = format_of("pocket")


def visit(task_id, won, of=10, group="g"):
    return [
        trajectory(task={"task_id": task_id}, group_id=group, rollout_id=i, outcome={"score": s, "success": s == 1.0})
        for i, s in enumerate([1.0] * won + [0.0] * (of - won))
    ]


@pytest.mark.parametrize(
    ("rates", "signal"),
    [
        ([5], "uncertain"),
        ([2], "uncertain"),
        ([8], "uncertain"),
        ([1], None),
        ([9], None),
        ([0], None),
        ([0, 0], None),
        ([0, 0, 0], "stuck"),
        ([10, 10], None),
        ([10, 10, 10], "mastered"),
        ([0, 10, 10, 10], "mastered"),
        ([10, 10, 10, 9], None),
        ([9, 5], "forgotten"),
        ([6, 2], "forgotten"),
        ([6, 3], "uncertain"),
        ([5, 0], None),
        ([10, 0, 0, 0], "forgotten"),
        ([10, 0, 10, 10, 10], "mastered"),
    ],
)
def test_what_a_history_says(rates, signal):
    signals = Signals()
    for number, won in enumerate(rates):
        signals.record(visit("t", won, group=f"g{number}"))
    assert signals.of("t") == signal
    assert signals.counts() == {name: int(name == signal) for name in signals.counts()}
    again = Signals()
    again.load_state_dict(signals.state_dict())
    assert again.of("t") == signal and again.mastered() == signals.mastered()


def test_rollouts_that_failed_say_nothing():
    signals = Signals()
    signals.record([trajectory(task={"task_id": "t"}, group_id="g", outcome=None, stop_reason="env_error")])
    assert signals.of("t") is None and not any(signals.counts().values())


def forgets_yes(call):
    return " ".join((call.tool, *(arg for arg in call.args if arg != "yes")))


def test_the_diagnosis_of_a_planted_fault_names_tool_and_quirk():
    failed, right = 0, 0
    for task_id in task_ids("train", 400):
        wanted = {call.tool for call in make_task(task_id).solution if "yes" in call.args and TOOLS[call.tool].guarded}
        for params in ({}, {"feedback": "recovery"}):
            one = rollout(task_id, forgets_yes, params)
            found = diagnose(one, POCKET)
            if one.outcome.success:
                assert found == ()
                continue
            failed += 1
            assert quirks_of(int(task_id.split(".")[1][1:])).guard == "yes"
            named = {d.tool for d in found if d.kind == "wrong_argument" and d.words == "add yes at the end"}
            right += named == wanted
    assert failed > 50 and right / failed >= 0.95


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("err no tool foo , try doc", "malformed"),
        ("err login first", "missing_call"),
        ("err find soap first", "missing_call"),
        ("err read doc note.del first", "missing_call"),
        ("err use note.add WORD TAG", "wrong_argument"),
        ("err something new", "refused"),
        ("ok n3", None),
    ],
)
def test_what_pocket_says_is_read(words, kind):
    found = POCKET.fault("note.del n3", words)
    assert (found and found[0]) == kind and (kind is None or kind in KINDS)


def failing(steps, **record):
    return trajectory(
        task={"task_id": "t", "env_type": "pocket", **record.pop("task", {})},
        group_id="g",
        steps=[{"index": i, "action": a, "observation": o} for i, (a, o) in enumerate(steps)],
        outcome={"score": 0.0, "success": False},
        **record,
    )


def test_where_the_environment_says_nothing_the_reference_does_then_the_end():
    steps = [("note.find soap", "soap n3 work"), ("done", "bye")]
    solved = {"metadata": {"solution": ["note.find soap", "note.del n3", "done"]}}
    assert diagnose(failing(steps, task=solved), POCKET) == (
        Diagnosis(1, "missing_call", "note.del", "the reference has note.del n3"),
    )
    other = {"metadata": {"solution": ["note.find rug", "done"]}}
    assert [(d.kind, d.tool) for d in diagnose(failing(steps, task=other), POCKET)] == [("wrong_argument", "note.find")]
    assert [(d.kind, d.step, d.tool) for d in diagnose(failing(steps), POCKET)] == [("wrong_outcome", 0, "note.find")]
    ended = failing([("note.find soap", "none")], stop_reason="max_steps")
    assert [d.kind for d in diagnose(ended, POCKET)] == ["out_of_steps"]


def test_the_same_refused_call_again_is_no_recovery_and_is_told_once():
    steps = [("note.del n3", "err add yes at the end")] * 3
    found = diagnose(failing(steps, stop_reason="max_steps"), POCKET)
    assert [(d.step, d.kind) for d in found] == [(0, "wrong_argument"), (1, "no_recovery")]


def test_a_record_keeps_its_diagnoses():
    one = failing([("note.del n3", "no")])
    assert "diagnoses" not in one.to_dict()
    one.diagnoses = (Diagnosis(0, "refused", "note.del", "no"),)
    assert type(one).from_dict(one.to_dict()).diagnoses == one.diagnoses


def weak(task_id, tool, site=1):
    one = failing([(f"{tool} n3", "err add yes at the end")], task={"task_id": task_id, "query": f"do {task_id}"})
    one.diagnoses = diagnose(one, POCKET)
    return one


def test_weaknesses_are_put_together_weighed_and_forgotten_after_the_window():
    signals, window = Signals(), WeaknessWindow(3)
    signals.record(visit("sure", 10) + visit("sure", 10, group="h") + visit("sure", 10, group="i"))
    signals.record(visit("often", 5))
    window.record(1, [weak("new", "note.del"), weak("new2", "note.del"), weak("sure", "cal.del")])
    window.record(2, [weak("often", "shop.ret"), weak("often", "shop.ret")])
    found = window.weaknesses(signals)
    assert [(w.tool, w.kind, w.count) for w in found] == [
        ("shop.ret", "wrong_argument", 4),
        ("note.del", "wrong_argument", 2),
    ], "what is uncertain counts twice, what is mastered nothing"
    assert found[1].seeds == ("new2", "new") and [e.task_id for e in found[1].examples] == ["new2", "new"]
    again = WeaknessWindow(3)
    again.load_state_dict(window.state_dict())
    assert again.weaknesses(signals) == found
    window.record(4, [])
    assert [w.tool for w in window.weaknesses(signals)] == ["shop.ret"]


def test_each_weakness_has_its_turn_and_each_world_one_exploration():
    signals, window = Signals(), WeaknessWindow(9)
    window.record(1, [weak(f"t{i}", "note.del") for i in range(9)])
    window.record(2, [weak("t0", "cal.del"), weak("u", "cal.del")])
    focus = focused(window.weaknesses(signals), 5)
    assert {f.tool: f.seeds for f in focus} == {"note.del": ("t8", "t7", "t6"), "cal.del": ("u", "t0")}
    assert focus[0].words == ("add yes at the end",) and focus[0].not_like == ("do t8", "do t7", "do t6")
    assert focused(window.weaknesses(signals), 0) == () and focused([], 5) == ()
