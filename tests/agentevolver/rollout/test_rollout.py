"""A rollout always returns: finished, full, or failed by name; and its instance is always released."""

import asyncio
from collections import Counter

import pytest

from agentevolver.rollout.engine import EngineError, Generated
from agentevolver.rollout.rollout import RolloutPolicy, RolloutRunner
from agentevolver.types import Outcome, StopReason, Task
from agentevolver.utils import seeds
from context_manager.chat import ChatRenderer
from context_manager.template import CausalTemplate, ContextLimits
from env_service.client import EnvServiceError, EnvUnavailable
from experience_manager.guide import Guidance, inject
from task_manager.graders.base import GradingError

TASK = Task(task_id="t", env_type="fake")
LIMITS = ContextLimits(1_000, 1_000, 2_000, 16, 100)


class FakeEnv:
    """An environment that ends after `length` steps; `faults` maps a method to the errors it raises, one per call."""

    def __init__(self, length=2, score=1.0, faults=None, healthy=True, says="go", info=None):
        self.says, self.info = says, {"query": "go"} if info is None else info
        self.length, self.score, self.healthy = length, score, healthy
        self.faults = {method: list(errors) for method, errors in (faults or {}).items()}
        self.open, self.calls, self.actions, self.created = set(), Counter(), [], []

    def _meet(self, method):
        self.calls[method] += 1
        if self.faults.get(method) and (error := self.faults[method].pop(0)) is not None:
            raise error

    async def create_instance(self, env_type, task_id, instance_id=None, params=None):
        self._meet("create")
        self.created.append((task_id, params))
        self.open.add(instance_id)
        state = [{"role": "system", "content": "s"}, {"role": "user", "content": self.says}]
        return {"state": state, "info": self.info}

    async def step(self, instance_id, action, params=None, step_index=None):
        self._meet("step")
        self.actions.append((step_index, action))
        seen = {"role": "user", "content": f"seen {step_index}"}
        return {"state": [seen], "reward": 0.0, "is_terminated": step_index + 1 >= self.length, "info": {}}

    async def evaluate(self, instance_id, messages=None, params=None):
        self._meet("evaluate")
        return self.score

    async def release_instance(self, instance_id):
        self._meet("release")
        self.open.discard(instance_id)
        return True

    async def health(self):
        self.calls["health"] += 1
        return self.healthy


class FakeEngine:
    """Samples "ok" and the close; `faults` are raised first."""

    def __init__(self, tokenizer, faults=()):
        self.reply = [*tokenizer.encode("ok"), tokenizer.eos_token_id]
        self.faults = list(faults)
        self.prompts, self.seeds = [], []

    async def generate(self, request_id, prompt_ids, sampling_params):
        self.prompts.append(list(prompt_ids))
        self.seeds.append(sampling_params.get("seed"))
        if self.faults and (error := self.faults.pop(0)) is not None:
            raise error
        return Generated(self.reply, [-0.5] * len(self.reply), 3, 3)


def runner(tokenizer, env, engine=None, graders=None, **policy):
    settings = {"max_steps": 5, "max_tries": 2, "sparse": True, "unavailable_timeout_s": 0.0, **policy}
    renderer = ChatRenderer(tokenizer)
    made = engine or FakeEngine(tokenizer)
    return RolloutRunner(
        RolloutPolicy(**settings), env, made, lambda: CausalTemplate(renderer, LIMITS), graders=graders
    )


def roll(tokenizer, env, engine=None, task=TASK, graders=None, guide=None, **policy):
    return asyncio.run(runner(tokenizer, env, engine, graders, **policy).run(task, "g", 0, {}, {"slack": 2}, guide))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    real = asyncio.sleep
    monkeypatch.setattr("agentevolver.rollout.rollout.asyncio.sleep", lambda seconds: real(0))


def test_an_episode_that_the_environment_ends_is_finished_and_graded(chatml):
    env = FakeEnv(length=2)
    rollout = roll(chatml, env)
    trajectory = rollout.trajectory
    assert trajectory.stop_reason is StopReason.FINISHED
    assert trajectory.outcome.success and trajectory.outcome.score == 1.0
    assert [(s.index, s.action, s.observation, s.action_tokens) for s in trajectory.steps] == [
        (0, "ok", "seen 0", 3),
        (1, "ok", "seen 1", 3),
    ]
    assert [(index, action["content"]) for index, action in env.actions] == [(0, "ok"), (1, "ok")]
    assert len(rollout.samples) == 1 and rollout.versions == {3}
    assert env.open == set()


def test_an_opening_that_does_not_fit_ends_without_a_step_a_grade_or_a_retry(chatml):
    env = FakeEnv()
    rollout = roll(chatml, env, task=Task("t", "fake", query="x" * 2_000))
    assert rollout.trajectory.stop_reason is StopReason.CONTEXT_FULL
    assert rollout.trajectory.outcome is None and rollout.samples == [] and rollout.trajectory.attempts == 1
    assert "data.max_prompt_length" in rollout.trajectory.error
    assert env.open == set()


def test_a_validation_task_whose_opening_does_not_fit_is_one_that_is_not_solved(chatml):
    env = FakeEnv(score=1.0)
    rollout = roll(chatml, env, task=Task("t", "fake", query="x" * 2_000, metadata={"validation": True}))
    assert rollout.trajectory.stop_reason is StopReason.CONTEXT_FULL and env.calls["evaluate"] == 0
    assert rollout.trajectory.outcome.score == 0.0 and not rollout.trajectory.outcome.success
    assert "data.max_prompt_length" in rollout.trajectory.outcome.reason
    assert rollout.samples == [] and env.open == set()


@pytest.mark.parametrize("method", ["create", "step", "evaluate"])
def test_a_passing_environment_failure_is_retried_on_a_fresh_instance(chatml, method):
    env = FakeEnv(faults={method: [EnvServiceError("broken")]})
    rollout = roll(chatml, env)
    assert rollout.trajectory.stop_reason is StopReason.FINISHED and rollout.trajectory.attempts == 2
    assert [index for index, _ in env.actions][-2:] == [0, 1], "the second attempt starts from the first step"
    assert env.open == set()


@pytest.mark.parametrize("method", ["create", "step", "evaluate"])
def test_an_environment_that_keeps_failing_gives_no_grade_and_no_sample(chatml, method):
    env = FakeEnv(faults={method: [EnvServiceError("broken")] * 9})
    rollout = roll(chatml, env)
    trajectory = rollout.trajectory
    assert trajectory.stop_reason is StopReason.ENV_ERROR and trajectory.outcome is None and rollout.samples == []
    assert trajectory.attempts == 2 and "broken" in trajectory.error
    assert env.open == set()


def test_an_engine_that_keeps_failing_is_an_llm_error(chatml):
    env = FakeEnv()
    rollout = roll(chatml, env, FakeEngine(chatml, [EngineError("no tokens")] * 9))
    assert rollout.trajectory.stop_reason is StopReason.LLM_ERROR and rollout.samples == []
    assert env.open == set() and env.actions == [], "nothing was executed that the policy did not say"


@pytest.mark.parametrize("score", [2.0, float("nan"), None])
def test_a_grade_that_is_no_number_in_the_unit_interval_is_an_environment_error(chatml, score):
    rollout = roll(chatml, FakeEnv(score=score))
    assert rollout.trajectory.stop_reason is StopReason.ENV_ERROR and rollout.samples == []


def test_a_service_that_stays_away_ends_the_rollout_without_using_up_the_tries(chatml):
    env = FakeEnv(faults={"create": [EnvUnavailable("refused")] * 9}, healthy=False)
    rollout = roll(chatml, env, max_tries=5)
    assert rollout.trajectory.stop_reason is StopReason.ENV_ERROR
    assert rollout.trajectory.attempts == 1 and env.calls["health"] == 1


class Away(FakeEnv):
    """A service that says it is there when it is asked for the third time."""

    async def health(self):
        await super().health()
        return self.calls["health"] >= 3


def test_a_service_that_comes_back_in_time_is_used_again(chatml):
    env = Away(faults={"step": [EnvUnavailable("refused")]})
    rollout = roll(chatml, env, unavailable_timeout_s=60.0)
    assert rollout.trajectory.stop_reason is StopReason.FINISHED and rollout.trajectory.attempts == 2


def test_a_failing_release_does_not_change_the_result(chatml):
    rollout = roll(chatml, FakeEnv(faults={"release": [EnvServiceError("gone")]}))
    assert rollout.trajectory.stop_reason is StopReason.FINISHED


async def test_a_cancelled_rollout_releases_its_instance(chatml):
    env = FakeEnv()

    class Hanging(FakeEngine):
        async def generate(self, request_id, prompt_ids, sampling_params):
            await asyncio.Event().wait()

    job = asyncio.create_task(runner(chatml, env, Hanging(chatml)).run(TASK, "g", 0, {}, {}))
    for _ in range(5):
        await asyncio.sleep(0)
    assert env.open
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert env.open == set()


def test_a_grader_sees_the_opening_without_guidance_and_with_the_state(chatml):
    async def guide(opening):
        return inject(opening, Guidance("be quick"), "<EXP>{}</EXP>")

    env, graders = FakeEnv(says="go\n\nA F H G"), FakeGraders(Outcome(1.0, True))
    rollout = roll(chatml, env, task=SYNTHETIC, graders=graders, guide=guide)
    assert rollout.trajectory.messages[1]["content"] == "<EXP>be quick</EXP>sort it\n\nA F H G"
    assert graders.asked == [("state", ["ok", "ok"], "sort it\n\nA F H G")]
    assert [message["content"] for message in graders.messages[2:]] == ["ok", "seen 0", "ok", "seen 1"]


SYNTHETIC = Task(
    "t#3", "fake", open_query=True, query="sort it", ground_truth="x", evaluator="state",
    metadata={"seed_task_id": "t", "env_params": {"explore_steps": 7}},
)  # fmt: skip


class FakeGraders:
    def __init__(self, answer):
        self.answer, self.asked = answer, []

    async def grade(self, task, trajectory, client, instance_id):
        assert instance_id in client.open, "the instance is still there"
        self.messages = trajectory.messages
        self.asked.append(
            (task.evaluator, [step.action for step in trajectory.steps], trajectory.messages[1]["content"])
        )
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_synthetic_task_happens_in_the_world_of_its_seed_and_its_own_grader_grades_it(chatml):
    env, graders = FakeEnv(length=2, score=0.0), FakeGraders(Outcome(1.0, True, "so it is"))
    rollout = roll(chatml, env, task=SYNTHETIC, graders=graders)
    assert env.created == [("t", {"slack": 2, "explore_steps": 7, "is_open_query": True})]
    assert rollout.trajectory.outcome == Outcome(1.0, True, "so it is") and rollout.samples
    assert graders.asked == [("state", ["ok", "ok"], "sort it")] and env.calls["evaluate"] == 0
    assert rollout.trajectory.task is SYNTHETIC and env.open == set()


def test_a_rollout_that_nobody_could_grade_has_no_score_and_no_sample_and_is_not_repeated(chatml):
    env, graders = FakeEnv(length=2), FakeGraders(GradingError("the judge is away"))
    rollout = roll(chatml, env, task=SYNTHETIC, graders=graders, max_tries=3)
    trajectory = rollout.trajectory
    assert trajectory.stop_reason is StopReason.GRADING_ERROR and trajectory.outcome is None and rollout.samples == []
    assert trajectory.error == "the judge is away" and trajectory.attempts == 1 and len(trajectory.steps) == 2
    assert not trajectory.stop_reason.happened and env.open == set()


def test_validation_is_graded_by_the_environment_whatever_grades_training(chatml):
    task = Task("t", "fake", evaluator="llm", metadata={"validation": True})
    graders = FakeGraders(Outcome(0.0, False))
    rollout = roll(chatml, FakeEnv(score=1.0), task=task, graders=graders)
    assert rollout.trajectory.outcome.success and graders.asked == []


def test_no_think_is_appended_to_what_the_environment_says(chatml):
    rollout = roll(chatml, FakeEnv(), no_think=True)
    assert [m["content"] for m in rollout.trajectory.messages if m["role"] == "user"] == [
        "go /no_think",
        "seen 0 /no_think",
        "seen 1 /no_think",
    ]


def test_every_call_samples_from_a_seed_of_its_own_and_an_attempt_that_failed_is_played_again_as_it_was(chatml):
    def sampled(rollout, faults=None):
        engine = FakeEngine(chatml)
        with seeds.drawing(1, "g", rollout):
            roll(chatml, FakeEnv(length=3, faults=faults), engine)
        return engine.seeds

    calm = sampled(0)
    assert len(set(calm)) == 3 and None not in calm
    assert sampled(0) == calm and not set(sampled(1)) & set(calm)
    assert sampled(0, {"step": [None, EnvUnavailable("away")]}) == [*calm[:2], *calm]
