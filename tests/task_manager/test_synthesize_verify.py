"""From a trajectory to proposals, and from proposals to verdicts: what is taken, what is dropped, and why."""

import json

import pytest
from questioning_fakes import LocalDesk, Tutor

from agentevolver.llm.errors import LLMReplyError, LLMTimeout
from agentevolver.llm.prompts import read_steps
from env_service.protocol import EnvCrashed
from task_manager.actions import format_of
from task_manager.explore import Exploration, ExploredStep
from task_manager.profile import shipped_profile
from task_manager.settings import SynthesisSettings, VerificationSettings
from task_manager.synthesize import Synthesis, Synthesiser, TaskProposal
from task_manager.verify import Verifier
from task_manager.world import SeedWorld

WORLD = SeedWorld("pocket", "note_add.k3.7")
FOUND = Exploration(
    WORLD, 0, "You are at site k3", [ExploredStep("note.list work", "soap n2 , rug n1 , pen n9 , desk n7", "breadth")]
)
GOOD = {"query": "file soap under fun", "solution": ["note.tag n2 fun"], "confidence": 0.8}


def synthesiser(*says, **settings):
    return Synthesiser(
        Tutor({"synthesiser/tasks": says}),
        format_of("pocket"),
        shipped_profile("pocket"),
        SynthesisSettings(**settings),
    )


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"query": "x", "confidence": 0.5}, "solution: field required"),
        ({"query": " ", "solution": ["a"], "confidence": 0.5}, "blank"),
    ],
)
async def test_a_bad_entry_is_rejected_with_its_reason_and_the_good_one_taken(entry, reason):
    made = await synthesiser(json.dumps({"tasks": [entry, GOOD]})).propose(FOUND, [])
    assert [p.query for p in made.proposals] == ["file soap under fun"]
    assert reason in made.rejected[0]


@pytest.mark.parametrize(
    "reply",
    [
        "Sure! Here are some tasks for you.",
        '{"tasks": [{"query": "x"}]}',
    ],
)
async def test_a_reply_without_anything_usable_is_an_error_and_no_task(reply):
    with pytest.raises(LLMReplyError):
        await synthesiser(reply, reply).propose(FOUND, [])
    assert (await synthesiser(reply).propose(FOUND, [])).proposals, "drawn once more"


@pytest.mark.parametrize(
    ("reply", "confidence"),
    [
        ([GOOD], 0.8),
        ({"tasks": [{**GOOD, "confidence": "high"}], "note": "only one"}, 0.85),
        ({"tasks": [{k: v for k, v in GOOD.items() if k != "confidence"}]}, 0.5),
        ({"tasks": [{**GOOD, "solution": [{"name": "note.tag", "arguments": {"id": "n2", "tag": "fun"}}]}]}, 0.8),
    ],
)
async def test_tasks_are_taken_in_whatever_shape_they_come(reply, confidence):
    class Writing(type(format_of("pocket"))):
        def action_of_call(self, name, arguments):
            return " ".join([name, *map(str, arguments.values())])

    tutor = Tutor({"synthesiser/tasks": [f"Here they are:\n```json\n{json.dumps(reply)}\n```"]})
    made = await Synthesiser(tutor, Writing("pocket"), shipped_profile("pocket"), SynthesisSettings()).propose(
        FOUND, []
    )
    assert made == Synthesis([TaskProposal("file soap under fun", ["note.tag n2 fun", "done"], confidence)], [])


def proposal(query, *solution):
    return TaskProposal(query, list(solution), 0.9)


def verifier(tutor=None, client=None, **settings):
    return Verifier(client or LocalDesk(), tutor or Tutor(), format_of("pocket"), VerificationSettings(**settings))


@pytest.mark.parametrize(
    ("solution", "stage", "reason"),
    [
        (["note.tag n5 fun", "done"], "execute", "was refused: err no such id n5"),
        (["note.tag n2 home", "done"], "judge", "another tag"),
    ],
)
async def test_a_task_that_does_not_hold_is_dropped_by_the_first_stage_that_sees_it(solution, stage, reason):
    tutor = Tutor()
    verdict = await verifier(tutor).verify(WORLD, proposal("file soap under fun", *solution), "opening")
    assert verdict.dropped_by == stage and reason in verdict.reason
    assert bool(tutor.asked("judge/accept")) == (stage == "judge")


@pytest.mark.parametrize(
    ("verdicts", "passed", "asked"),
    [([True], True, 1), ([False, True, True], True, 3), ([False, False], False, 2), ([False, True, False], False, 3)],
)
async def test_a_refusal_stands_unless_every_second_opinion_accepts(verdicts, passed, asked):
    says = [
        json.dumps({"reason": str(i), "accepted": accepted, "confidence": 0.9}) for i, accepted in enumerate(verdicts)
    ]
    tutor = Tutor({"judge/accept": says})
    verdict = await verifier(tutor).verify(WORLD, proposal("file soap under fun", "note.tag n2 fun", "done"), "")
    assert verdict.passed is passed and len(tutor.asked("judge/accept")) == asked
    assert verdict.reason == ("" if passed else "0")
    seeds = [sampling.get("seed") for _, _, sampling in tutor.prompts]
    assert len(set(seeds)) == asked, "each opinion is drawn anew"


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        (["note.tag n2 fun", "done"], None),
        (["note.tag n1 fun", "done"], "note/n2 is soap fun; nothing else changed"),
        (["note.list work"] * 8, "did not finish in 8 steps"),
        (["", ""], "gave no usable action"),
    ],
)
async def test_whoever_solves_it_without_the_reference_must_end_in_the_same_state(actions, reason):
    client = LocalDesk()
    verdict = await verifier(Tutor({"verifier/solve": actions}), client, resolve=True).verify(
        WORLD, proposal("file soap under fun", "note.tag n2 fun", "done"), "opening"
    )
    assert verdict.passed == (reason is None)
    assert reason is None or (verdict.dropped_by == "resolve" and reason in verdict.reason)
    assert not client.open


@pytest.mark.parametrize(
    ("reference", "attempt", "solution"),
    [
        (
            ["note.list work", "note.tag n2 fun", "done"],
            ["note.tag n99 fun", "note.tag n2 fun", "done"],
            ["note.tag n2 fun", "done"],
        ),
        (["note.tag n2 fun", "done"], ["note.list work", "note.tag n2 fun", "done"], None),
    ],
    ids=["shorter without what was refused", "longer"],
)
async def test_whoever_solves_it_in_fewer_actions_to_the_same_end_gives_it_its_reference(reference, attempt, solution):
    tutor = Tutor({"verifier/solve": attempt})
    verdict = await verifier(tutor, resolve=True).verify(WORLD, proposal("file soap under fun", *reference), "opening")
    assert verdict.passed and verdict.solution == solution
    assert [action for action, _ in verdict.steps] == (solution or reference)
    judged = tutor.asked("judge/accept")[0]
    assert [step.action for step in read_steps(judged["transcript"])] == (solution or reference)
    assert [step.action for step in read_steps(judged["attempt"])] == (reference if solution else attempt)
    assert [str(change) for change in verdict.check.changes] == ["note/n2: soap work -> soap fun"]


async def test_the_solver_never_sees_the_reference_and_the_judge_sees_the_attempt():
    tutor = Tutor({"verifier/solve": ['{"action": "note.tag n2 fun"}', '{"action": "done"}']})
    await verifier(tutor, resolve=True).verify(
        WORLD, proposal("file soap under fun", "note.list work", "note.tag n2 fun", "done"), "o"
    )
    assert all(
        set(sections) == {"opening", "task", "steps_left", "transcript"} for sections in tutor.asked("verifier/solve")
    )
    assert "note.list" not in str(tutor.asked("verifier/solve"))
    assert "note.tag n2 fun" in tutor.asked("judge/accept")[0]["attempt"]


async def test_a_failure_is_no_verdict():
    client = LocalDesk()
    client.failures = [("/step", EnvCrashed("broke"))]
    with pytest.raises(EnvCrashed):
        await verifier(client=client).verify(WORLD, proposal("file soap under fun", "note.tag n2 fun", "done"), "")
    with pytest.raises(LLMTimeout):
        await verifier(Tutor({"judge/accept": [LLMTimeout("slow")]}), client).verify(
            WORLD, proposal("x", "note.tag n2 fun", "done"), ""
        )
    assert not client.open
