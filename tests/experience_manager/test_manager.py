"""A run's experience manager: one answer a group, true flags, counters that nobody loses, and nothing that fails a
rollout or a step."""

import asyncio
import logging

import pytest
from experience_fakes import SMALL, experience, lesson, outage, record, teller

from agentevolver.llm import LLMFiltered
from agentevolver.llm.embeddings import EncoderUnavailable
from experience_manager.backend import EmbeddedBackend
from experience_manager.errors import StoreBusy, StoreCorrupt, StoreUnwritable
from experience_manager.guide import inject
from experience_manager.manager import ExperienceManager
from experience_manager.pool import Pool
from experience_manager.question import Question
from experience_manager.settings import ExperienceSettings, RetrievalSettings

GUIDED = {"experience_ids": ("a",), "injected": "<EXP>x</EXP>", "text": "x", "keep": False, "problem": ""}


def configured(**options):
    reme = {"enable_context_generator": True, "enable_summarizer": True, "updated_freq": 1, **options.pop("reme", {})}
    return ExperienceSettings(train_rollout_mode="mixed", rollout_ratio=0.5, reme=reme, **options)


def question(task="do t1", **more):
    messages = ({"role": "system", "content": "You are at site k7."}, {"role": "user", "content": task})
    return Question(**{"task_id": "t1", "messages": messages, "step": 1, **more})


class Opened:
    """A manager over a store of its own."""

    def __init__(self, folder, llm=None, encoder=SMALL, steps_kept=1, **options):
        self.settings = configured(**options)
        self.backend = EmbeddedBackend.open(self.settings, folder, llm, encoder=encoder, author="m", held_out=("held",))
        self.manager = ExperienceManager(self.settings, self.backend, steps_kept=steps_kept)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.manager.aclose(1.0)

    def put(self, *experiences):
        Pool.of(self.settings, self.backend.pool.store, SMALL).put(experiences)

    def get(self, identifier):
        return self.backend.pool.store.get("default", identifier)


class BrokenBackend:
    """Fails in every method as it is told."""

    def __init__(self, error):
        self.error, self.asked = error, 0

    async def retrieve(self, question):
        self.asked += 1
        if self.error == "hang":
            await asyncio.sleep(3600)
        raise self.error

    async def _fail(self, *_):
        raise self.error

    distil = keep = used = settle = record = prune = size = aclose = _fail


async def test_a_group_asks_once_and_gets_one_answer(tmp_path):
    async with Opened(tmp_path) as opened:
        opened.put(experience(id="a"))
        answers = await asyncio.gather(*(opened.manager.guide(question()) for _ in range(8)))
        assert (
            len(set(answers)) == 1 and answers[0].experience_ids == ("a",) and "read its doc first" in answers[0].text
        )
        assert (await opened.manager.metrics())["exp_manager/retrievals"] == 1


async def test_a_rollout_that_begins_late_is_told_what_its_group_was_told(tmp_path):
    async with Opened(tmp_path, steps_kept=5) as opened:
        opened.put(experience("a"))
        first = await opened.manager.guide(question(step=1))
        opened.put(experience("b"))
        for step in range(2, 6):
            await opened.manager.guide(question(step=step))
        assert await opened.manager.guide(question(step=1)) is first
        await opened.manager.guide(question(step=6))
        assert await opened.manager.guide(question(step=1)) is not first


@pytest.mark.parametrize("error", [StoreBusy("locked"), EncoderUnavailable("not installed"), RuntimeError("a bug")])
async def test_whatever_fails_in_retrieval_is_an_unguided_rollout_and_a_count_and_one_log_line(error, caplog):
    backend = BrokenBackend(error)
    manager = ExperienceManager(configured(), backend)
    with caplog.at_level(logging.WARNING):
        answers = [await manager.guide(question(task_id=str(i))) for i in range(5) for _ in range(4)]
    assert all(not answer and str(error) in answer.problem for answer in answers) and backend.asked == 5
    assert not any(inject(question().messages, answer, "{}").guided for answer in answers)
    assert len(caplog.records) == 1 and "go on without guidance" in caplog.records[0].getMessage()
    assert (await manager.metrics())["exp_manager/retrieval_errors"] == 5


async def test_a_retrieval_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(RetrievalSettings, "timeout_s", 0.05)
    manager = ExperienceManager(configured(), BrokenBackend("hang"))
    guidance = await manager.guide(question())
    assert not guidance and guidance.problem == "no answer within 0.05 s"


@pytest.mark.parametrize("error", [StoreUnwritable("no room"), RuntimeError("a bug")])
async def test_a_store_that_fails_fails_no_step(error):
    manager = ExperienceManager(configured(pruning={"every_steps": 1}), BrokenBackend(error))
    await manager.injected(["a"])
    metrics = await manager.record_step(1, [record(guidance=GUIDED)])
    await manager.background.drain(5)
    metrics |= await manager.record_step(2, [])
    for name in ("use_errors", "settle_errors", "credit_errors", "prune_errors", "size_errors"):
        assert metrics[f"exp_manager/{name}"] == 1, name
    assert metrics["exp_manager/distil/failed_groups"] == 1
    await manager.aclose(1.0)


async def test_a_use_is_counted_when_the_text_was_injected_and_not_when_it_was_only_found(tmp_path):
    async with Opened(tmp_path) as opened:
        opened.put(experience(id="a"), experience(id="b", content="other"))
        await opened.manager.guide(question())
        await opened.manager.record_step(1, [])
        assert opened.get("a").uses == 0
        for _ in range(3):
            await opened.manager.injected(("a", "b"))
        await opened.manager.injected(("a",), validation=True)
        metrics = await opened.manager.record_step(2, [])
        assert (opened.get("a").uses, opened.get("b").uses) == (3, 3)
        assert metrics["exp_manager/guided_rollouts"] == 3 and metrics["exp_manager/guided_val_rollouts"] == 1


async def test_successes_and_the_lift_over_unguided_siblings_are_known_when_the_step_is(tmp_path):
    async with Opened(tmp_path) as opened:
        opened.put(experience(id="a"))
        for _ in range(3):
            await opened.manager.injected(("a",))
        rollouts = [record(number=0, guidance=GUIDED), record(number=1, score=0.0, guidance=GUIDED)]
        rollouts += [record(number=2, score=0.0), record(number=3, score=1.0), record("t2", 0, guidance=GUIDED)]
        await opened.manager.record_step(1, rollouts)
        found = opened.get("a")
        # t1: 1 - 0.5 and 0 - 0.5; t2 has nobody to be compared with.
        assert (found.uses, found.successes, found.compared, found.lift_sum) == (3, 2, 2, 0.0)


def validation_record(**more):
    row = record(**more)
    row.task.metadata["validation"] = True
    return row


async def test_validation_rollouts_are_neither_counted_nor_learned_from(tmp_path):
    llm = teller()
    async with Opened(tmp_path, llm=llm) as opened:
        opened.put(experience(id="a"))
        row = validation_record(guidance=GUIDED)
        await opened.manager.record_step(1, [row])
        await opened.manager.warm_start([row])
        assert llm.calls == [] and opened.get("a").successes == 0 and len(opened.backend.pool) == 1


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (outage(), ("t2",)),
        (LLMFiltered("content filter"), ()),
        (RuntimeError("a fault"), ("t2",)),
    ],
)
async def test_a_warm_start_tells_the_tasks_of_which_calls_were_lost_that_another_time_may_bring(tmp_path, error, left):
    llm = teller(success=lambda sections: error if sections["task"] == "do t2" else {"experiences": [lesson()]})
    async with Opened(tmp_path, llm=llm) as opened:
        filling = await opened.manager.warm_start([record("t1"), record("t2")])
        assert filling.undistilled == left and filling.metrics["exp_manager/pool_size"] == 1


async def test_finished_rollouts_become_experience_that_guides_the_next_step(tmp_path):
    async with Opened(tmp_path, llm=teller()) as opened:
        await opened.manager.record_step(1, [record(number=i, score=float(i % 2)) for i in range(4)])
        await opened.manager.background.drain(5)
        metrics = await opened.manager.record_step(2, [])
        assert metrics["exp_manager/pool_size"] == 1
        # Two successes, two failures, one comparison: all say the same.
        assert [metrics[f"exp_manager/distil/{name}"] for name in ("valid", "stored", "joined")] == [5, 1, 4]
        assert "read its doc first" in (await opened.manager.guide(question(step=3))).text
        assert (await opened.manager.metrics())["exp_manager/context_cost_avg"] > 0


async def test_harmful_experiences_are_pruned_at_their_step(tmp_path):
    async with Opened(tmp_path, pruning={"every_steps": 2, "min_uses": 4}) as opened:
        opened.put(experience(id="harmful", uses=9, compared=9, lift_sum=-3.0), experience(content="x", uses=9))
        assert (await opened.manager.record_step(1, []))["exp_manager/pool_size"] == 2
        metrics = await opened.manager.record_step(2, [])
        assert metrics["exp_manager/pruned"] == 1 and metrics["exp_manager/pool_size"] == 1


async def test_pool_and_counts_come_back_as_they_were_saved_once_all_that_was_handed_over_is_in_it(tmp_path):
    folder, llm = tmp_path / "checkpoint", teller()
    folder.mkdir()
    async with Opened(tmp_path / "run", llm=llm) as opened:
        await opened.manager.guide(question())
        await opened.manager.record_step(1, [record(number=i, score=float(i % 2)) for i in range(4)])
        await opened.manager.injected(("x",), validation=True)
        await opened.manager.save(folder)
        assert len(opened.backend.pool) == 1, "what was in the queue is in the pool"
        expected, saved = await opened.manager.metrics(), opened.backend.pool.store.records("default")
        await opened.manager.record_step(2, [record("t2")])
        await opened.manager.settled()
        assert opened.backend.pool.store.records("default") != saved
    async with Opened(tmp_path / "run", llm=llm) as again:
        assert await again.manager.restore(folder, tmp_path / "aside.sqlite")
        assert again.backend.pool.store.records("default") == saved
        assert await again.manager.metrics() == expected and expected["exp_manager/distil/groups"] == 1
        assert not await again.manager.restore(tmp_path, tmp_path / "aside.sqlite")


async def test_a_save_that_fails_leaves_the_one_of_before_and_what_is_damaged_is_named_and_changes_nothing(
    tmp_path, monkeypatch
):
    async with Opened(tmp_path / "run") as opened:
        manager, folder = opened.manager, tmp_path / "checkpoint"
        folder.mkdir()
        opened.put(experience(id="a"))
        await manager.save(folder)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert set(before) == {"experience.sqlite", "experience.json"}

        async def half(path):
            path.write_bytes(b"half")
            raise StoreUnwritable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(opened.backend, "copy_to", half)
            with pytest.raises(StoreUnwritable):
                await manager.save(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

        opened.put(experience(id="b", content="another"))
        for name in before:
            (folder / name).write_bytes(before[name][:40])
            with pytest.raises(StoreCorrupt, match=name):
                await manager.restore(folder, tmp_path / "aside.sqlite")
            (folder / name).write_bytes(before[name])
        assert len(opened.backend.pool) == 2 and not (tmp_path / "aside.sqlite").exists()
        assert await manager.restore(folder, tmp_path / "aside.sqlite") and len(opened.backend.pool) == 1


async def test_the_same_rollouts_teach_the_same_experiences_under_the_same_ids(tmp_path):
    pools = []
    for seed in (1, 1, 2):
        async with Opened(tmp_path / str(len(pools)), llm=teller()) as opened:
            manager = ExperienceManager(opened.settings, opened.backend, seed=seed)
            await manager.record_step(
                1, [record(task, i, score=float(i % 2)) for task in ("t1", "t2") for i in range(4)]
            )
            await manager.settled()
            pools.append([experience.id for experience in opened.backend.pool.store.records("default")])
            await manager.background.close()
    assert pools[0] == pools[1] and len(pools[0]) > 0 and not set(pools[0]) & set(pools[2])


async def test_a_tasks_training_prompts_keep_or_lose_the_guidance_as_the_mode_says(tmp_path):
    for mode, ratio, expected in (("alldiscard", 1.0, 0), ("allkeep", 0.0, 8), ("hybrid", 0.5, 4)):
        async with Opened(tmp_path / mode, train_sample_mode=mode, train_sample_keepratio=ratio) as opened:
            opened.put(experience(id="a"))
            answers = [
                await opened.manager.guide(question(task_id=str(i), place=i)) for i in range(8) for _ in range(2)
            ]
            assert sum(answer.keep for answer in answers) == 2 * expected
            assert not (await opened.manager.guide(question(validation=True))).keep


async def test_a_guided_rollout_that_did_not_happen_was_no_use(tmp_path):
    async with Opened(tmp_path) as opened:
        opened.put(experience(id="a"))
        await opened.manager.injected(("a",))
        await opened.manager.injected(("a",))
        await opened.manager.record_step(
            1, [record(number=0, score=None, guidance=GUIDED), record(number=1, guidance=GUIDED)]
        )
        assert (opened.get("a").uses, opened.get("a").successes) == (1, 1)
