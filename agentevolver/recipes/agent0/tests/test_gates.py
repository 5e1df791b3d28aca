"""Gates: which label, and that nothing passes that was not measured, executed or judged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.recipes.agent0.gates import gate
from agentevolver.recipes.agent0.settings import Agent0Settings
from agentevolver.recipes.agent0.tests.golden import golden
from agentevolver.recipes.agent0.types import Dropped, Kept, Proposal
from agentevolver.recipes.agent0.votes import measured, same, share

GATES = ["executed", "agree", "judge", "vote"]
ANSWER = st.sampled_from([None, "", "7", "7.0", "8", "9", "x"])
TABLES = st.lists(ANSWER, min_size=1, max_size=20)
NEVER = Dropped("unexecutable", "it stops with an error")


def proposal(answer=None, refused=""):
    return Proposal("r1.0007", "calc.left.3.f.00017", "left 3 f 4", "left 3 f 4", answer, refused)


def settings(name, **extra):
    return Agent0Settings(gate=name, **extra)


@pytest.mark.parametrize(
    "case", golden("gates"), ids=lambda case: "-".join([case["gate"], *case.get("kept", [""])[:1]])
)
def test_golden(case):
    measurement = measured(case["answers"], [1] * len(case["answers"]), case.get("executed"))
    found = gate(
        settings(case["gate"]), proposal(case.get("answer")), measurement, case.get("executed"), case.get("judged")
    )
    if "kept" in case:
        assert found == Kept(*case["kept"])
    else:
        assert (type(found), found.reason) == (Dropped, case["dropped"])


@given(TABLES, st.sampled_from(GATES), ANSWER, ANSWER, st.sampled_from(["", "7", "8", " "]))
def test_what_is_kept_has_a_label_and_a_p_within_the_bounds(answers, name, own, program, judged):
    measurement = measured(answers, [0] * len(answers))
    conf = settings(name, min_answered=3)
    executed = program if program is not None else NEVER
    found = gate(conf, proposal(own), measurement, executed, judged)
    given_label = {"executed": program, "judge": judged, "vote": measurement.vote}.get(name)
    if isinstance(found, Dropped):
        assert found.reason and found.detail
        if name == "agree" or not (given_label or "").strip():
            return
        p = share(answers, given_label)
        assert not (0.3 <= p <= 0.8 and measurement.answered >= 3)
    else:
        assert found.label.strip()
        assert 0.3 <= found.p <= 0.8
        assert measurement.answered >= 3
        assert found.p == share(answers, found.label)
        if name != "agree":
            assert found.label == given_label


@given(TABLES, TABLES, st.sampled_from(["7", "8", "-1"]))
def test_the_label_of_executed_never_depends_on_votes(answers, others, value):
    for table in (answers, others):
        found = gate(settings("executed", min_answered=1), proposal("9"), measured(table, [0] * len(table)), value, "8")
        assert (
            found.label == value if isinstance(found, Kept) else found.reason in ("unanswered", "too_hard", "too_easy")
        )


@given(TABLES, ANSWER, ANSWER)
def test_agree_needs_two(answers, own, program):
    measurement = measured(answers, [0] * len(answers))
    found = gate(settings("agree", min_answered=1), proposal(own), measurement, program)
    sources = [program, own, measurement.vote]
    if isinstance(found, Kept):
        assert sum(same(found.label, source) for source in sources) >= 2
    elif found.reason == "disagree":
        assert not any(same(sources[i], sources[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("name", GATES)
def test_a_missing_measurement_is_an_error_and_no_p(name):
    for missing in (None, measured(["7"], [0])):
        if missing is not None:
            missing = type(missing)((), (), "7", 1.0, "7", 1.0)
        with pytest.raises(ValueError, match=r"r1\.0007 was not measured"):
            gate(settings(name), proposal("7"), missing, "7", "7")


@pytest.mark.parametrize(("name", "other"), [("executed", {"judged": "7"}), ("judge", {"executed": "7"})])
def test_a_label_that_nobody_made_is_an_error(name, other):
    with pytest.raises(ValueError, match=f"the gate '{name}' needs a label"):
        gate(settings(name), proposal("7"), measured(["7"] * 5 + ["8"] * 5, [0] * 10), **other)


@pytest.mark.parametrize("name", GATES)
def test_what_was_refused_is_dropped_by_its_word_without_being_measured(name):
    refused = proposal(refused="asks_for_files: the question reads /etc/passwd")
    assert gate(settings(name), refused, None) == Dropped("asks_for_files", "the question reads /etc/passwd")


def test_a_program_that_did_not_run_says_why_and_does_not_count_for_agree():
    measurement = measured(["7"] * 5 + ["8"] * 5, [0] * 10)
    assert gate(settings("executed"), proposal("7"), None, NEVER) is NEVER
    assert gate(settings("judge"), proposal("7"), None, judged=NEVER) is NEVER
    assert gate(settings("agree"), proposal("7"), measurement, NEVER) == Kept("7", 0.5)
