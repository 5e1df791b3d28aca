"""Notes for an agent whose context is too small, made of real long episodes."""

from __future__ import annotations

import pytest

from agentevolver.llm import prompts
from agentevolver.recipes.offline.teacher.prompt import NotUnderstood
from agentevolver.recipes.offline.teacher.service import Teacher
from agentevolver.recipes.offline.tests.teacher.pocket_prompts import NO_MISTAKES, Steps, carry_out
from env_service.environments.pocket.long_env import PocketLongEnv, make_chain
from env_service.environments.pocket.tests.references import long_reference
from env_service.environments.pocket.tests.replays import hint_parts

TASK = "long.k7.4"
OPENING = f"site k7\n{make_chain(TASK).goals[0].query}"


def steps_of(task_id: str, actions: list[str]) -> Steps:
    return carry_out(PocketLongEnv(task_id, "i", {"slack": len(actions)}), actions)


def noted(steps: Steps, summary: str = "") -> list[str]:
    sections = {"opening": OPENING, "summary": summary, "transcript": prompts.transcript(steps)}
    text = Teacher(rates=NO_MISTAKES).answer(prompts.messages("summariser/context", "Do it.", sections))
    return text.splitlines()


def test_notes_end_with_the_task_at_hand_and_what_was_found_for_it() -> None:
    first, second, *_ = make_chain(TASK).goals
    assert noted(steps_of(TASK, ["cal.find joe"])) == ["so far cal.find joe : joe e4 wed 4", first.query]
    found = "so far shop.find mug : mug price 6 left 3"
    assert noted(steps_of(TASK, ["cal.find joe", "done", "shop.find mug"])) == [found, second.query]


def test_what_the_site_was_found_to_want_is_told_first_and_what_failed_is_not() -> None:
    steps = steps_of(TASK, ["cal.find joe", "cal.move e4 thu"])
    assert steps[-1][2].startswith("err")
    found = "so far cal.find joe : joe e4 wed 4"
    assert noted(steps) == ["tip add yes after tag move del ret", found, make_chain(TASK).goals[0].query]


def test_earlier_notes_are_taken_over() -> None:
    steps = steps_of(TASK, long_reference(TASK))
    notes: list[str] = []
    for i, step in enumerate(steps[:-1]):
        notes = noted([step], "\n".join(notes))
        whole = noted(steps[: i + 1])
        assert notes[-1] == whole[-1], "the task at hand, however long ago it was given"
        assert [line for line in notes if line.startswith("so far ")] == [
            line for line in whole if line.startswith("so far ")
        ]
    tips = notes[0].removeprefix("tip ").split(" ; ")
    assert {"add yes after tag move del ret", "bank.pay amount name"} <= set(tips), (
        "what was found out in the first goals is still known"
    )


@pytest.mark.parametrize("task_id", PocketLongEnv.get_query_list("train", {"n": 6}))
def test_what_is_told_of_a_site_is_so(task_id: str) -> None:
    steps = steps_of(task_id, long_reference(task_id))
    tip = noted(steps)[0]
    assert tip.startswith("tip ")
    assert set(tip.removeprefix("tip ").split(" ; ")) <= set(hint_parts(task_id.replace("long", "open")).values())


def test_a_transcript_that_is_none_is_not_understood() -> None:
    messages = prompts.messages("summariser/context", "Do it.", {"opening": OPENING, "transcript": "assistant: x"})
    with pytest.raises(NotUnderstood, match="numbered steps"):
        Teacher().answer(messages)
