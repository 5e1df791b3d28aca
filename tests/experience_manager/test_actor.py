"""The experience manager as a Ray actor: what a run sees of it, and what a rollout sees when it is gone."""

import asyncio

import pytest
from experience_fakes import experience, record

from experience_manager.guide import inject
from experience_manager.pool import Pool
from experience_manager.question import Question
from experience_manager.settings import ExperienceSettings
from experience_manager.store import Store

pytestmark = pytest.mark.service
INIT = [
    {"role": "system", "content": "You are at site k7, a small office."},
    {"role": "user", "content": "delete the note milk"},
]
TEACHERLESS = {"base_url": "http://127.0.0.1:9/v1", "tries": 1, "api_key_env": None}


@pytest.fixture(scope="module")
def ray():
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def configured(**options):
    reme = {"enable_context_generator": True, "enable_summarizer": True, "updated_freq": 1}
    return ExperienceSettings(
        train_rollout_mode="mixed",
        rollout_ratio=0.5,
        reme=reme,
        encoder={"kind": "hashing"},
        **options,
    )


def fill(path, settings, *experiences):
    from agentevolver.llm.embeddings import make_encoder

    with Store(path) as store:
        Pool.of(settings, store, make_encoder(settings.encoder)).put(experiences)


def ask(**more):
    return Question(**{"task_id": "t1", "messages": tuple(INIT), "step": 1, **more})


async def test_rollouts_are_guided_counted_and_told_why_not_once_it_is_gone(ray, tmp_path):
    from agentevolver.llm import LLMSettings
    from experience_manager.actor import Guide, start_actor

    settings = configured()
    fill(tmp_path / "experience.sqlite", settings, experience("delete the note", id="a"))
    actor = start_actor(settings, LLMSettings(**TEACHERLESS), tmp_path, held_out=["t9"])
    ray.get(actor.__ray_ready__.remote(), timeout=120)
    guide = Guide(actor, settings)
    answers = await asyncio.gather(*(guide.guide(ask()) for _ in range(4)))
    assert {answer.experience_ids for answer in answers} == {("a",)}
    injection = inject(INIT, answers[0], settings.experience_template)
    guide.injected(answers[0], validation=False)
    rollouts = [record(guidance=injection.use().to_dict()["guidance"])]
    metrics = await actor.record_step.remote(1, rollouts)
    assert metrics["exp_manager/guided_rollouts"] == 1 and metrics["exp_manager/pool_size"] == 1
    # The summariser is not there: it shows in the metrics and nowhere else.
    filling = await actor.warm_start.remote([record("t2")])
    metrics = filling.metrics
    assert filling.undistilled == ("t2",)
    assert metrics["exp_manager/distil/failed_extraction"] >= 1 and metrics["llm/summariser/errors"] >= 1
    await actor.aclose.remote(5.0)
    ray.kill(actor)
    gone = await guide.guide(ask(step=2))
    assert not gone and "the experience manager failed" in gone.problem
    assert not inject(INIT, gone, settings.experience_template).guided
    guide.injected(answers[0], validation=False)
    with Store(tmp_path / "experience.sqlite") as store:
        assert (store.get("default", "a").uses, store.get("default", "a").successes) == (1, 1)


def test_a_pool_that_cannot_be_used_ends_a_run_before_it_begins(ray, tmp_path):
    from agentevolver.llm import LLMSettings
    from experience_manager.actor import start_actor

    (tmp_path / "experience.sqlite").write_bytes(b"no store at all" * 50)
    actor = start_actor(configured(), LLMSettings(**TEACHERLESS), tmp_path)
    with pytest.raises(ray.exceptions.RayActorError, match="is damaged or no store"):
        ray.get(actor.__ray_ready__.remote(), timeout=120)
