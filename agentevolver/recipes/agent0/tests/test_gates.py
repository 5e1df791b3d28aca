"""Gates: which label, and that nothing passes that was not measured or executed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.recipes.agent0.gates import gate
from agentevolver.recipes.agent0.settings import Agent0Settings
from agentevolver.recipes.agent0.tests.golden import golden
from agentevolver.recipes.agent0.types import DroppedProposal, KeptProposal, ProposedTask
from agentevolver.recipes.agent0.votes import measured, share

GATES = ["executed", "vote"]
ANSWER = st.sampled_from([None, "", "7", "7.0", "8", "9", "x"])
TABLES = st.lists(ANSWER, min_size=1, max_size=20)
NEVER = DroppedProposal("unexecutable", "it stops with an error")


def proposal(answer=None, refused=""):
    return ProposedTask("r1.0007", "calc.left.3.f.00017", "left 3 f 4", "left 3 f 4", answer, refused)


def settings(name, **extra):
    return Agent0Settings(gate=name, **extra)


@pytest.mark.parametrize(
    "case", golden("gates"), ids=lambda case: "-".join([case["gate"], *case.get("kept", [""])[:1]])
)
def test_golden(case):
    measurement = measured(case["answers"], [1] * len(case["answers"]), case.get("executed"))
    found = gate(settings(case["gate"]), proposal(case.get("answer")), measurement, case.get("executed"))
    if "kept" in case:
        assert found == KeptProposal(*case["kept"])
    else:
        assert (type(found), found.reason) == (DroppedProposal, case["dropped"])


@given(TABLES, st.sampled_from(GATES), ANSWER, ANSWER)
def test_what_is_kept_has_a_label_and_a_p_within_the_bounds(answers, name, own, program):
    measurement = measured(answers, [0] * len(answers))
    found = gate(settings(name, min_answered=3), proposal(own), measurement, program if program is not None else NEVER)
    label = program if name == "executed" else measurement.vote
    if isinstance(found, KeptProposal):
        assert found.label == label and label.strip()
        assert 0.3 <= found.p <= 0.8 and measurement.answered >= 3
        assert found.p == share(answers, found.label)
    else:
        assert found.reason and found.detail
        if (label or "").strip():
            assert not (0.3 <= share(answers, label) <= 0.8 and measurement.answered >= 3)


@given(TABLES, TABLES, st.sampled_from(["7", "8", "-1"]))
def test_the_label_of_executed_never_depends_on_votes(answers, others, value):
    for table in (answers, others):
        found = gate(settings("executed", min_answered=1), proposal("9"), measured(table, [0] * len(table)), value)
        assert (
            found.label == value
            if isinstance(found, KeptProposal)
            else found.reason in ("unanswered", "too_hard", "too_easy")
        )


@pytest.mark.parametrize("name", GATES)
def test_a_missing_measurement_is_an_error_and_no_p(name):
    for missing in (None, measured(["7"], [0])):
        if missing is not None:
            missing = type(missing)((), (), "7", 1.0, "7", 1.0)
        with pytest.raises(ValueError, match=r"r1\.0007 was not measured"):
            gate(settings(name), proposal("7"), missing, "7")


def test_a_label_that_nobody_made_is_an_error():
    with pytest.raises(ValueError, match="the gate 'executed' needs a label"):
        gate(settings("executed"), proposal("7"), measured(["7"] * 5 + ["8"] * 5, [0] * 10))


@pytest.mark.parametrize("name", GATES)
def test_what_was_refused_is_dropped_by_its_word_without_being_measured(name):
    refused = proposal(refused="asks_for_files: the question reads /etc/passwd")
    assert gate(settings(name), refused, None) == DroppedProposal("asks_for_files", "the question reads /etc/passwd")


def test_a_program_that_did_not_run_says_why():
    assert gate(settings("executed"), proposal("7"), None, NEVER) is NEVER
