"""Records of rollouts and messages of a foreign client, as attempts."""

from experience_fakes import record

from experience_manager.attempts import read_attempts
from experience_manager.guide import Guidance, inject
from experience_manager.settings import TEMPLATE

OPENING = [{"role": "system", "content": "You are at site k7."}, {"role": "user", "content": "do t1"}]


def test_the_guidance_that_a_rollout_had_is_no_part_of_what_is_learned_from_it():
    guidance = inject(OPENING, Guidance("secret advice", ("a",)), TEMPLATE).use().to_dict()["guidance"]
    (found,) = read_attempts([record(guidance=guidance)])
    assert found.guided and (found.opening, found.task) == ("You are at site k7.", "do t1")


def test_rollouts_that_did_not_happen_or_were_not_graded_are_left_out():
    records = [
        record(number=0, score=None),
        record(number=1, stop_reason="llm_error"),
        record(number=2, outcome=None),
        record(number=3),
    ]
    assert [a.trajectory_id for a in read_attempts(records)] == ["t1_3"]


def test_success_is_the_graders_word_or_a_threshold():
    graded = record(score=0.7)
    assert (
        not read_attempts([graded])[0].success
        and read_attempts([graded], 0.7)[0].success
        and not read_attempts([graded], 0.71)[0].success
    )
