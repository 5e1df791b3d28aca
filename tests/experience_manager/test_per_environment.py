"""Experience of several environments: what one taught reaches no rollout of another, and is joined to nothing there."""

from pathlib import Path

from experience_fakes import SMALL, experience, record, teller

from experience_manager.backend import EmbeddedBackend
from experience_manager.manager import ExperienceManager
from experience_manager.per_environment import BackendPerEnvironment
from experience_manager.pool import Pool
from experience_manager.question import Question
from experience_manager.settings import ExperienceSettings

SETTINGS = ExperienceSettings(
    train_rollout_mode="all",
    reme={"enable_context_generator": True, "enable_summarizer": True, "updated_freq": 1},
)


def opened(folder: Path, llm=None, held_out=()):
    whole = EmbeddedBackend.open(SETTINGS, folder, llm, encoder=SMALL, author="m")
    backends = {name: whole.of_environment(name, held_out) for name in ("pocket", "lake")}
    return whole.pool, ExperienceManager(SETTINGS, BackendPerEnvironment(backends))


def question(env_type, **more):
    messages = ({"role": "system", "content": "rules"}, {"role": "user", "content": "buy milk"})
    return Question("t1", messages, step=1, env_type=env_type, **more)


def rollout(env_type, task_id="t1", number=0, score=1.0):
    task = {"task_id": task_id, "env_type": env_type, "metadata": {}}
    return record(task_id, number, score=score, task=task, group_id=f"{env_type}-{task_id}")


def put(pool: Pool, env_type: str, *experiences):
    pool.beside(f"default.{env_type}").put(experiences)


async def test_a_rollout_is_guided_by_its_environments_experience_alone(tmp_path):
    pool, manager = opened(tmp_path)
    put(pool, "lake", experience("to buy milk", "walk to the east", id="a"))
    # Of a run on one environment alone, in the same store.
    pool.put([experience("to buy milk", "the plain one", id="b")])
    assert (await manager.guide(question("pocket"))).problem == "empty"
    found = await manager.guide(question("lake"))
    assert "walk to the east" in found.text and found.experience_ids == ("a",)
    await manager.aclose()


async def test_what_says_the_same_in_two_environments_stays_two_and_each_is_counted_where_it_is(tmp_path):
    pool, manager = opened(tmp_path, teller())
    trajectories = [rollout(name, number=i, score=float(i)) for name in ("pocket", "lake") for i in (0, 1)]
    await manager.record_step(1, trajectories)
    await manager.settled()
    assert pool.store.workspaces() == {"default.lake": 1, "default.pocket": 1}
    metrics = await manager.metrics()
    assert metrics["exp_manager/pool_size"] == 2 and metrics["exp_manager/distil/groups"] == 2
    (of_lake,) = pool.store.records("default.lake")
    await manager.injected([of_lake.id])
    await manager.record_step(2, [])
    assert [pool.store.records(f"default.{name}")[0].uses for name in ("lake", "pocket")] == [1, 0]
    await manager.aclose()


async def test_held_out_tasks_are_those_of_the_environment(tmp_path):
    whole = EmbeddedBackend.open(SETTINGS, tmp_path, teller(), encoder=SMALL, author="m")
    apart = BackendPerEnvironment(
        {"pocket": whole.of_environment("pocket", ["t1"]), "lake": whole.of_environment("lake")}
    )
    manager = ExperienceManager(SETTINGS, apart)
    await manager.record_step(1, [rollout(name) for name in ("pocket", "lake")])
    await manager.settled()
    assert list(whole.pool.store.workspaces()) == ["default.lake"]
    await manager.aclose()


async def test_the_pool_is_saved_and_set_back_as_a_whole(tmp_path):
    pool, manager = opened(tmp_path)
    put(pool, "pocket", experience("a"))
    put(pool, "lake", experience("b"))
    (tmp_path / "checkpoint").mkdir()
    await manager.save(tmp_path / "checkpoint")
    put(pool, "lake", experience("c"))
    assert await manager.restore(tmp_path / "checkpoint", tmp_path / "aside.sqlite")
    assert pool.store.workspaces() == {"default.lake": 1, "default.pocket": 1}
    assert (tmp_path / "aside.sqlite").exists()
    await manager.aclose()
