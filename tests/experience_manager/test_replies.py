"""Replies of the summariser in the shapes that models put them: taken entry by entry, and junk never."""

import json

import pytest
from experience_fakes import lesson, valid
from pydantic import ValidationError

from agentevolver.llm.reply import read_reply
from experience_manager.prompts import Judgements, Proposals


def proposals(reply):
    return read_reply(json.dumps(reply), Proposals)


@pytest.mark.parametrize(
    "reply",
    [
        {"experiences": [lesson()]},
        [lesson()],
        lesson(),
        {"experiences": [lesson(), "and so on"]},
        {"experiences": [lesson(content=["read its doc first"])]},
    ],
)
def test_one_lesson_in_any_shape_is_that_lesson(reply):
    (found,) = proposals(reply).experiences
    assert (found.when_to_use, found.content, found.scope, found.tags, found.confidence) == (
        "deleting a note",
        "read its doc first",
        "",
        ["notes"],
        0.8,
    )


@pytest.mark.parametrize("junk", ["prose", [], None, [1, 2], {"experiences": [{}]}, {"lessons": [lesson()]}])
def test_junk_is_no_reply(junk):
    with pytest.raises(ValidationError):
        Proposals.model_validate(junk)
    with pytest.raises(ValidationError):
        Judgements.model_validate(junk)


def verdicts(reply, count):
    return [
        judgement and (judgement.valid, judgement.score) for judgement in Judgements.model_validate(reply).of(count)
    ]


def test_judgements_go_to_their_experiences_by_number_or_in_order():
    assert verdicts(valid("very low"), 1) == [(True, 0.1)]
    yes, no = valid(0.9), {**valid(0.2), "valid": False}
    both = [(True, 0.9), (False, 0.2)]
    assert verdicts({"judgements": [{"number": 2, **no}, {"number": 1, **yes}]}, 2) == both
    assert verdicts([yes, no], 2) == verdicts({"judgements": [yes, no]}, 2) == both
    assert verdicts(yes, 1) == verdicts({"judgements": yes}, 1) == [(True, 0.9)]
    assert verdicts([{"number": 1, **no}, {"number": 0, **yes}], 2) == both
    assert verdicts([{"number": "2", **yes}], 3) == [None, (True, 0.9), None]


def test_judgements_that_cannot_be_told_apart_are_none():
    yes, no = valid(0.9), {**valid(0.2), "valid": False}
    assert verdicts([yes, no], 3) == [None, None, None]
    assert verdicts(yes, 2) == [None, None]
    assert verdicts([{"number": 1, **yes}, {"number": 1, **no}, {"number": 1, **yes}], 1) == [None]
    assert verdicts([{"number": 7, **yes}], 1) == [None]
    assert verdicts([{"number": 0, **yes}, {"number": 1, **no}], 3) == [None, None, None]
