"""The whole funnel over a small world: what is kept, what is recorded, what happens when things fail."""

import asyncio
import json
import random

import pytest
from questioning_fakes import LocalDesk, Tutor

from agentevolver.llm.embeddings import HashingEncoder
from agentevolver.llm.errors import BudgetExceeded, LLMRefused, LLMReplyError, LLMTimeout, LLMUnavailable
from agentevolver.types import Task
from env_service.protocol import EnvCrashed, EnvRequestError
from task_manager.actions import format_of
from task_manager.explore import Explorer, make_strategy
from task_manager.journal import PipelineJournal, PipelinePlan
from task_manager.known_queries import KnownQueries
from task_manager.pipeline import QuestioningFailed, TaskPipeline
from task_manager.profile import shipped_profile
from task_manager.settings import TaskManagerSettings
from task_manager.synthesize import Synthesiser
from task_manager.verify import Verifier
from tests.constants import settings_with

SEEDS = ("note_add.k3.7", "pay.k1.3", "balance.k2.5", "price.k4.9")
MODELS = dict.fromkeys(("explorer", "synthesiser", "verifier", "judge"), "tutor")
PROFILE = shipped_profile("pocket")


_opened = []


@pytest.fixture(autouse=True)
def _closed_journals():
    yield
    while _opened:
        _opened.pop().close()


def settings_of(**changes):
    base = {
        "unavailable_timeout_s": 0.0,
        "n": 1,
        "num_explore_threads": 2,
        "strategy_args": {"breadth_steps": 3, "depth_steps": 3},
        "synthesis": {"max_tasks": 20},
    }
    return settings_with(TaskManagerSettings, **{**base, **changes})


def plan_of(settings, seeds=SEEDS, models=MODELS, profile=PROFILE):
    return PipelinePlan.of(settings, env_type="pocket", env_params={}, profile=profile, seeds=seeds, models=models)


def pipeline(folder, llm, client=None, *, settings=None, seeds=SEEDS):
    settings, client, fmt = settings or settings_of(), client or LocalDesk(), format_of("pocket")
    strategy = make_strategy(settings.strategy, fmt, settings.strategy_args)
    journal = folder if isinstance(folder, PipelineJournal) else PipelineJournal(folder)
    _opened.append(journal)
    return TaskPipeline(
        plan_of(settings, seeds),
        settings,
        journal,
        client,
        explorer=Explorer(client, llm, fmt, PROFILE, strategy, settings.strategy_args),
        synthesiser=Synthesiser(llm, fmt, PROFILE, settings.synthesis),
        verifier=Verifier(client, llm, fmt, settings.verification),
        strategy=strategy,
        fmt=fmt,
        pool=KnownQueries(settings.deduplication, HashingEncoder(), ()),
    )


async def test_each_kept_task_has_an_id_a_world_a_reference_and_a_check_of_its_own(tmp_path):
    tasks = await pipeline(tmp_path, Tutor()).run()
    assert len(tasks) >= 8
    assert len({task.task_id for task in tasks}) == len({task.query for task in tasks}) == len(tasks)
    for task in tasks:
        seed, _, number = task.task_id.rpartition("#")
        assert seed in SEEDS and number.isdigit() and task.metadata["seed_task_id"] == seed
        assert task.open_query and task.evaluator == "state" and task.metadata["state_check"]["changes"]
        assert task.ground_truth == "\n".join(task.metadata["solution"])
        assert task.metadata["env_params"] == {"explore_steps": len(task.metadata["solution"]) + 1}
        assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task


async def test_the_funnel_narrows_and_says_why(tmp_path):
    tutor = Tutor()
    bad = {"query": "file nothing", "solution": ["note.tag n99 fun"], "confidence": 0.9}
    wrong = {"query": "file soap under home", "solution": ["note.tag n2 fun"], "confidence": 0.9}
    good = {"query": "file soap under fun", "solution": ["note.tag n2 fun"], "confidence": 0.9}
    tutor.says["synthesiser/tasks"] = [json.dumps({"tasks": [bad, wrong, good, good, {"query": "x"}]})]
    run = pipeline(tmp_path, tutor, seeds=("note_add.k3.7",))
    assert [task.query for task in await run.run()] == ["file soap under fun"]
    funnel = run.funnel()
    assert (funnel.explored, funnel.proposed, funnel.parsed, funnel.deduplicated, funnel.kept) == (1, 5, 4, 1, 1)
    # The double may be seen before or after it is verified.
    assert (funnel.verified, funnel.executed, funnel.passed) in ((4, 3, 2), (3, 2, 1))
    assert sum(funnel.dropped.values()) == 4
    funnel.tokens, funnel.cost = 900, 1.5
    metrics = funnel.metrics()
    assert metrics["questioning/tokens_per_task"] == 900 and metrics["questioning/rate/parsed"] == 0.8


class Slow(Tutor):
    """Takes its time, differently each time; `patience` decides how."""

    def __init__(self, patience):
        super().__init__()
        self._patience = random.Random(patience)

    async def _said(self, *arguments):
        await asyncio.sleep(self._patience.random() * 0.01)
        return await super()._said(*arguments)


@pytest.mark.thorough
async def test_tasks_are_the_same_whoever_is_quicker(tmp_path):
    kept = []
    for patience in range(4):
        # Worlds that have much in common, so that it matters which one's proposals are kept first.
        settings = settings_of(n=2, num_explore_threads=3, deduplication={"jaccard": 0.7})
        run = pipeline(tmp_path / str(patience), Slow(patience), settings=settings)
        kept.append([(task.task_id, task.query, task.metadata["solution"]) for task in await run.run()])
    assert len(kept[0]) > 3 and all(other == kept[0] for other in kept)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"deduplication": {"jaccard": 0.5}}, set()),
        ({"synthesis": {"max_tasks": 19}}, {"judge/accept", "synthesiser/tasks"}),
        (
            {"strategy_args": {"breadth_steps": 4, "depth_steps": 2}},
            {"judge/accept", "synthesiser/tasks", "explorer/act"},
        ),
    ],
)
async def test_a_changed_setting_redoes_what_follows_from_it_and_no_more(tmp_path, change, again):
    with PipelineJournal(tmp_path) as journal:
        await pipeline(journal, Tutor()).run()
    tutor = Tutor()
    with PipelineJournal(tmp_path) as journal:
        assert await pipeline(journal, tutor, settings=settings_of(**change)).run()
    assert {task for task, _, _ in tutor.prompts} == again


def test_keys_follow_environment_profile_models_and_prompts():
    settings = settings_of()
    plan = plan_of(settings)
    others = [
        plan_of(settings, models={**MODELS, "explorer": "another"}),
        plan_of(settings, profile=PROFILE.model_copy(update={"background": "another"})),
        PipelinePlan.of(settings, env_type="moon", env_params={}, profile=PROFILE, seeds=SEEDS, models=MODELS),
        PipelinePlan.of(
            settings, env_type="pocket", env_params={"slack": 2}, profile=PROFILE, seeds=SEEDS, models=MODELS
        ),
    ]
    assert len({p.exploration("s", 0) for p in (plan, *others)}) == 5
    judged = plan_of(settings, models={**MODELS, "judge": "another"})
    assert judged.exploration("s", 0) == plan.exploration("s", 0) and judged.verdict("x", 0) != plan.verdict("x", 0)
    assert PipelinePlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


async def test_it_stops_at_the_target_and_goes_on_from_there(tmp_path):
    tutor = Tutor()
    with PipelineJournal(tmp_path) as journal:
        some = await pipeline(journal, tutor, settings=settings_of(target_tasks=3, num_explore_threads=1)).run()
    assert len(some) == 3 and len(tutor.asked("synthesiser/tasks")) < len(SEEDS)
    with PipelineJournal(tmp_path) as journal:
        more = await pipeline(journal, Tutor(), settings=settings_of()).run()
    assert more[:3] == some and len(more) > 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    "says",
    [
        {"synthesiser/tasks": ["Here you go: tasks!", '{"tasks": [{"query": "a", "sol', ""]},
        {"explorer/act": ["", "", "", '{"act']},
        {"synthesiser/tasks": [LLMUnavailable("429"), LLMTimeout("slow"), LLMReplyError("no", "no")]},
    ],
)
async def test_what_a_model_says_wrongly_is_lost_and_the_rest_is_kept_and_tried_again_later(tmp_path, says):
    with PipelineJournal(tmp_path) as journal:
        run = pipeline(journal, Tutor(says))
        some = await asyncio.wait_for(run.run(), 30)
        assert some and 1 <= run.funnel().failed <= 3
    with PipelineJournal(tmp_path) as journal:
        everything = await pipeline(journal, Tutor()).run()
    complete = await pipeline(tmp_path / "other", Tutor()).run()
    assert {task.query for task in everything} == {task.query for task in complete} > {task.query for task in some}


async def test_a_world_that_breaks_is_tried_again_and_an_instance_never_left_open(tmp_path):
    client = LocalDesk()
    client.failures = [
        ("/step", EnvCrashed("broke")),
        ("/create", EnvCrashed("broke")),
        ("/get_info", EnvCrashed("broke")),
    ]
    run = pipeline(tmp_path, Tutor(), client)
    tasks = await run.run()
    assert {task.query for task in tasks} == {task.query for task in await pipeline(tmp_path / "x", Tutor()).run()}
    assert run.funnel().failed == 0 and not client.open and not client.failures


@pytest.mark.parametrize("error", [LLMRefused("wrong key"), EnvRequestError("no such environment")])
async def test_a_run_in_which_everything_fails_ends_early(tmp_path, error):
    client = LocalDesk()
    seeds = tuple(f"note_add.k3.{i}" for i in range(60))
    tutor = Tutor({"explorer/act": [error] * 60} if isinstance(error, LLMRefused) else {})
    client.failures = [("/create", error)] * 60 if isinstance(error, EnvRequestError) else []
    run = pipeline(tmp_path, tutor, client, seeds=seeds)
    with pytest.raises(QuestioningFailed, match="more than 50% of them") as failed:
        await run.run()
    assert "\n" not in str(failed.value) and str(error) in str(failed.value)
    assert run.funnel().failed < 15


async def test_a_spent_budget_stops_cleanly(tmp_path):
    tutor = Tutor({"judge/accept": [BudgetExceeded("spent")]})
    run = pipeline(tmp_path, tutor, settings=settings_of(num_explore_threads=1))
    await run.run()
    assert run.funnel().failed == 0 and run.funnel().explored <= 2  # the next one is under way when the first is judged
