"""Execution, state comparison and the grader `state` on gymnasium and an environment of one's own, by the contract
alone."""

from __future__ import annotations

import pytest
from questioning_fakes import LocalDesk

from agentevolver.types import Outcome, Task
from env_service.base import BaseEnv
from env_service.environments.gymnasium.env import GymnasiumEnv
from task_manager.actions import format_of
from task_manager.graders.environment import CHECK_KEY
from task_manager.graders.registry import GraderContext, make_grader
from task_manager.settings import GraderSettings
from task_manager.verify import flaw_of, recheck_tasks
from task_manager.world import SeedWorld, execute

LAKE = "FrozenLake-v1:seed=0"


class Door(BaseEnv):
    """An environment of one's own: a door that opens, and a bell that answers."""

    isolation = "shared"
    explore_steps = "patience"

    def __init__(self, task_id, instance_id, params=None):
        super().__init__(task_id, instance_id, params)
        self.left = self.params.get("patience", 2)
        self.is_open, self.answer = False, None

    def get_init_state(self, params=None):
        return {
            "state": [{"role": "user", "content": "Look around.\n\nThere is a door and a bell."}],
            "info": {"query": "Look around."},
        }

    def step(self, action, params=None):
        self.left -= 1
        text = action["content"]
        refused = False if text in ("open", "ring") or text.startswith("leave") else "nothing like that can be done"
        self.is_open = self.is_open or text == "open"
        if text.startswith("leave"):
            self.answer = text.removeprefix("leave").strip()
        said = refused or ("ding, ding, ding" if text == "ring" else "ok")
        over = self.answer is not None or self.left <= 0
        info = {"refused": refused, "finished": self.answer is not None, "answer": self.answer}
        return {"state": [{"role": "user", "content": said}], "reward": 0.0, "is_terminated": over, "info": info}

    def evaluate(self, messages=None, params=None):
        return 0.0

    def get_info(self, messages=None, params=None):
        if (params or {}).get("what") != "state":
            return None
        return {
            "facts": {"door": {"open": self.is_open}},
            "answer": self.answer,
            "finished": self.answer is not None,
            "exact": True,
        }

    @staticmethod
    def get_query_list(split="train", params=None):
        return ["d"]


class Local(LocalDesk):
    def __init__(self, world):
        super().__init__()
        self.world = world


# World, class, a good reference, another one to the same effect, and wrong ones with what is found of each.
WORLDS = [
    pytest.param(
        SeedWorld("gymnasium", LAKE), GymnasiumEnv,
        ["action: right", "action: done"], ["I go east.\naction: 2", "action: left", "action: right", "action: done."],
        {
            ("action: fly", "action: done"): "was refused",
            ("action: right",): None,
            ("action: done",): "it changes nothing and answers nothing",
            ("action: done", "action: right"): "left over",
        },
        id="gymnasium",
    ),
    pytest.param(
        SeedWorld("door", "d"), Door,
        ["open", "leave"], ["ring", "open", "leave"],
        {
            ("open", "kick", "leave"): "was refused: nothing like that",
            ("ring", "leave"): "it changes nothing",
            ("open",): "the episode did not end after its 1 actions",
            ("ring", "leave 3"): None,
        },
        id="one's own",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("world", "env_class", "reference", "same", "wrong"), WORLDS)
async def test_references_are_carried_out_checked_and_graded_by_state(world, env_class, reference, same, wrong):
    client, fmt = Local(env_class), format_of(world.env_type)
    done = await execute(client, world, fmt, fmt.complete(reference, None))
    assert flaw_of(done, fmt) is None and done.finished and done.confirmed and all(done.observations)
    assert done.check is not None and all(holds for _, holds in done.check.judge(done.after))
    again = await execute(client, world, fmt, fmt.complete(same, None))
    assert flaw_of(again, fmt) is None and all(holds for _, holds in done.check.judge(again.after))
    for actions, flaw in wrong.items():
        other = await execute(client, world, fmt, list(actions))
        found = flaw_of(other, fmt)
        if flaw is not None:
            assert flaw in str(found), f"{actions}: {found}"
        else:
            assert not all(holds for _, holds in done.check.judge(other.after)), actions
    assert not client.open
    task = Task("t#0", world.env_type, open_query=True, query="q", ground_truth="x", evaluator="state",
                metadata={"seed_task_id": world.seed_task_id, "solution": reference,
                CHECK_KEY: done.check.to_dict()})  # fmt: skip
    (finding,) = await recheck_tasks(client, [task], {}, 1)
    assert finding.flaw is None
    grader = make_grader("state", GraderContext(GraderSettings(), None))
    for actions, score in ((same, 1.0), (list(wrong)[-1], 0.0)):
        outcome = await graded(grader, client, world, task, fmt.complete(actions, None))
        assert outcome.score == score


async def graded(grader, client, world, task, actions):
    """The grade of a rollout that takes these actions."""
    params = {"is_open_query": True, "explore_steps": len(actions) + 5}
    await client.create_instance(world.env_type, world.seed_task_id, "rollout", params)
    try:
        for action in actions:
            if (await client.step("rollout", {"role": "assistant", "content": action}))["is_terminated"]:
                break
        return await grader.grade(task, None, client, "rollout")
    finally:
        await client.release_instance("rollout")


class Talker(Door):
    """Answers are sentences here."""

    def get_info(self, messages=None, params=None):
        told = super().get_info(messages, params)
        return told and {**told, "prose": True}


async def test_a_task_that_changes_and_asks_in_prose_is_graded_by_state_and_judge():
    client, fmt, world = Local(Talker), format_of("door"), SeedWorld("door", "d")
    done = await execute(client, world, fmt, ["open", "leave It rang three times."])
    assert done.check.prose and done.check.decides
    asked_only = await execute(client, world, fmt, ["ring", "leave It rang three times."])
    assert asked_only.check is None, "that something was said is no check"
    task = Task("t#0", "door", open_query=True, query="q", ground_truth="x", evaluator="state-llm",
                metadata={"solution": ["open"], CHECK_KEY: done.check.to_dict()})  # fmt: skip

    class Judge:
        name, asked = "judge", 0

        async def grade(self, task, trajectory, client, instance_id):
            self.asked += 1
            return Outcome(0.2, False, "it rang four times")

    from task_manager.graders.environment import StateCheckGrader, StateThenJudge

    judge = Judge()
    grader = StateThenJudge(StateCheckGrader(), judge)
    outcome = await graded(grader, client, world, task, ["ring", "leave It rang three times."])
    assert outcome.score == 0.0 and judge.asked == 0, "the door is shut"
    outcome = await graded(grader, client, world, task, ["open", "leave It rang four times."])
    assert outcome == Outcome(0.2, False, "it rang four times") and judge.asked == 1
