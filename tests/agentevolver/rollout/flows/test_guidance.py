"""Guidance in episodes: who has it, what of it the policy sees, what of it is trained on, and what is recorded."""

import asyncio
from dataclasses import replace

from agentevolver.rollout.guidance import Guides
from agentevolver.types import Task
from context_manager.template import ContextLimits
from experience_manager.guide import Guidance
from experience_manager.settings import ExperienceSettings
from tests.agentevolver.rollout.flows.harness import ROOMY, TASK, play

TEXT = "read the manual first"
OBSERVATIONS = [("user", "fine", False)]


class FixedSource:
    """Answers every question with the same guidance."""

    def __init__(self, guidance):
        self.guidance = guidance
        self.asked, self.counted = [], []

    async def guide(self, question):
        self.asked.append(question)
        return self.guidance

    def injected(self, guidance, *, validation):
        self.counted.append((guidance.experience_ids, validation))


def made(guidance=None, n=4, val_n=2, **options):
    given = {
        "reme": {"enable_context_generator": True},
        "train_rollout_mode": "mixed",
        "rollout_ratio": 0.5,
        "experience_template": "tip {}. ",
    }
    source = FixedSource(Guidance(TEXT, ("a", "b")) if guidance is None else guidance)
    return Guides(ExperienceSettings(**given | options), source, n, val_n), source


def rolled_out(renderer, guides, limits=ROOMY):
    guide = guides.guide(TASK, "g", 0, 3)
    ids = [[*renderer.encode("look"), renderer.tokenizer.eos_token_id]]
    played = play(renderer, "causal", "react", ids, OBSERVATIONS, limits=limits, max_steps=2, guide=guide)
    return played, guides.used(played.rollout, wanted=guide is not None).to_dict()


def guided_ids(guides, task, n):
    return [i for i in range(n) if guides.guide(task, "g", i, 1) is not None]


def test_half_of_a_training_group_is_guided_and_of_a_validation_what_its_mode_says():
    validation = replace(TASK, metadata={"validation": True})
    guides, _ = made()
    assert len(guided_ids(guides, TASK, 4)) == 2 and guided_ids(guides, validation, 2) == []
    assert guided_ids(made(val_rollout_mode="all")[0], validation, 2) == [0, 1]
    assert guided_ids(made(val_rollout_mode="both")[0], validation, 4) == [2, 3], "those with it come last"
    assert guided_ids(made(train_rollout_mode="all")[0], replace(TASK, metadata={"scout": True}), 4) == []


def test_a_guided_rollout_is_sampled_with_the_text_and_trained_on_without(chatml):
    guides, source = made(train_rollout_mode="all")
    played, record = rolled_out(chatml, guides)
    (sample,) = played.rollout.samples
    seen, trained = (chatml.text(ids) for ids in (played.engine.calls[0][0], sample.prompt_ids))
    assert f"tip {TEXT}. go" in seen and TEXT not in trained
    assert trained == seen.replace(f"tip {TEXT}. ", "")
    assert record["guided"] and record["stripped"] and record["guidance_wanted"] and record["guidance_problem"] == ""
    assert record["guidance"]["injected"] == f"tip {TEXT}. " and record["guidance"]["experience_ids"] == ("a", "b")
    assert source.counted == [(("a", "b"), False)]
    (question,) = source.asked
    asked = question.task_id, question.step, question.validation, question.messages[-1]["content"]
    assert asked == ("t", 3, False, "go")


def test_a_rollout_for_which_nothing_was_found_is_unguided_and_says_why(chatml):
    guides, source = made(Guidance(problem="empty"), train_rollout_mode="all")
    played, record = rolled_out(chatml, guides)
    assert record == {
        "guidance": None, "guided": False, "stripped": False, "guidance_wanted": True, "guidance_problem": "empty"
    }  # fmt: skip
    assert source.counted == [] and played.rollout.samples


def test_guidance_that_does_not_fit_is_left_out_and_the_rollout_goes_on(chatml):
    guides, source = made(Guidance("x" * 400, ("a",)), train_rollout_mode="all")
    played, record = rolled_out(chatml, guides, ContextLimits(200, 500, 1_300, 48, 60))
    assert not record["guided"] and record["guidance_problem"].startswith("too long: the opening messages have")
    assert played.rollout.trajectory.outcome is not None and len(played.rollout.samples) == 1
    assert source.counted == []


def test_a_task_with_its_own_wording_asks_with_that():
    guides, source = made(train_rollout_mode="all")
    guide = guides.guide(Task("t#1", "fake", open_query=True, query="do this"), "g", 0, 1)
    injection = asyncio.run(guide([{"role": "user", "content": "do this"}]))
    assert source.asked[0].query == "do this" and injection.messages[-1]["content"] == f"tip {TEXT}. do this"
