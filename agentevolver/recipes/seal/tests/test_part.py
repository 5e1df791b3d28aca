"""The loop across stages: what is asked for when, that nothing is made twice, and that without it nothing changes."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.config.checks import load
from agentevolver.recipes.seal import closed_loop as looping
from agentevolver.recipes.seal.closed_loop import ClosedLoop
from agentevolver.recipes.seal.part import STATE, parts
from agentevolver.recipes.seal.settings import SealSettings
from agentevolver.trainer.parts import TrainerParts
from agentevolver.trainer.recipe_parts import PartContext
from agentevolver.trainer.tasks import TrainingTasks
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError
from task_manager.background import round_file
from task_manager.mixture import Mixture, TaskCycle
from task_manager.profile import shipped_profile
from task_manager.settings import MixtureSettings, QuestioningConfiguration
from task_manager.tasks import write_objectives, write_tasks
from tests.trajectories import trajectory

BASIC = Path(__file__).parents[4] / "examples" / "basic.yaml"
ORIGINALS = [Task(f"note_add.k1.{i}", "pocket", metadata={"split": "train"}) for i in range(8)]
LOOP = {"enable": True, "every": 2, "budget_tasks": 4}


def wish():
    return shipped_profile("pocket").task_preference


def synthetic(count, start=0):
    metadata = [{"seed_task_id": f"note_add.k2.{i}", "state_check": {}} for i in range(start, start + count)]
    return [
        Task(f"{m['seed_task_id']}#0", "pocket", True, f"query {m['seed_task_id']}", "done", "state", m)
        for m in metadata
    ]


def failed(task, tool="note.del", group="g"):
    step = {"index": 0, "action": f"{tool} n3", "observation": "err add yes at the end"}
    told = {"step": 0, "kind": "wrong_argument", "tool": tool, "words": "add yes at the end"}
    outcome = {"score": 0.0, "success": False}
    return trajectory(task=task.to_dict(), group_id=group, steps=[step], outcome=outcome, diagnoses=[told])


def solved(task, group="g"):
    return trajectory(task=task.to_dict(), group_id=group, outcome={"score": 1.0, "success": True})


class FakeRounds:
    """In the place of `BackgroundQuestioning`: a round is over when `ready` says what it brings."""

    def __init__(self, configuration, folder):
        self.target = configuration.task_manager.train_data_path
        self.began, self.ready, self.is_running = [], None, False

    @property
    def next_number(self):
        return 1 + sum(1 for _ in self.target.parent.glob(f"{self.target.name}.round*"))

    def start(self, preference, focus, target_tasks):
        assert not self.is_running
        self.began.append(list(focus))
        self.is_running = True

    def collect(self):
        ready, self.ready = self.ready, None
        if ready is None:
            return None
        self.is_running = False
        if ready:
            write_objectives(round_file(self.target, self.next_number), ready)
        return ready

    def stop(self):
        self.is_running = False


def loop_of(tmp_path, monkeypatch, **section):
    monkeypatch.setattr(looping, "BackgroundQuestioning", FakeRounds)
    tree = {"task_manager": {"train_data_path": str(tmp_path / "t.jsonl")}}
    return ClosedLoop(
        SealSettings(**LOOP | section), QuestioningConfiguration.model_validate(tree), tmp_path / "rounds"
    )


def test_a_round_is_asked_for_against_what_failed_and_one_at_a_time(tmp_path, monkeypatch):
    loop = loop_of(tmp_path, monkeypatch)
    for step in (1, 2, 3):
        loop.end_step(step, wish)
    assert loop._background.began == [], "nothing failed, so there is nothing to ask for"
    told = loop.record(4, [failed(ORIGINALS[i], group=f"g{i}") for i in range(6)])
    assert told["closed_loop/weaknesses"] == 1 and told["closed_loop/share_in_step"] == 0
    loop.end_step(4, wish)
    ((focus,),) = loop._background.began
    assert (focus.tool, focus.kind, focus.words) == ("note.del", "wrong_argument", ("add yes at the end",))
    assert len(focus.seeds) == 4, "no more worlds than tasks that may be made"
    loop.record(6, [failed(ORIGINALS[7], "cal.del")])
    assert loop.end_step(6, wish) == [] and len(loop._background.began) == 1
    loop._background.ready = synthetic(2)
    assert [task.task_id for task in loop.end_step(7, wish)] == ["note_add.k2.0#0", "note_add.k2.1#0"]
    assert len(loop._background.began) == 2, "what was due meanwhile begins"
    told = loop.record(8, [solved(synthetic(1)[0]), failed(ORIGINALS[0], group="h")])
    assert told["closed_loop/made"] == told["closed_loop/rounds"] == 2 and told["closed_loop/failed_rounds"] == 0
    assert told["closed_loop/share_in_step"] == 0.5 and told["closed_loop/success_on_made"] == 1


def test_a_round_that_brings_nothing_is_counted_and_the_next_one_is_asked_for_in_its_turn(tmp_path, monkeypatch):
    loop = loop_of(tmp_path, monkeypatch)
    loop.record(2, [failed(ORIGINALS[0])])
    loop.end_step(2, wish)
    loop._background.ready = []
    assert loop.end_step(3, wish) == [] and not loop._background.is_running
    assert loop.record(3, [])["closed_loop/failed_rounds"] == 1
    loop.end_step(4, wish)
    assert [one["number"] for one in record_of(tmp_path)] == [1, 1]


def record_of(tmp_path):
    return json.loads((tmp_path / "rounds" / "rounds.json").read_text())["rounds"]


def test_a_round_that_a_kill_cut_off_is_asked_for_again_word_by_word_and_a_finished_one_is_not(tmp_path, monkeypatch):
    first = loop_of(tmp_path, monkeypatch)
    first.record(1, [failed(ORIGINALS[0])])
    saved = json.loads(json.dumps(first.state_dict()))
    first.record(2, [failed(ORIGINALS[1], "cal.del")])
    first.end_step(2, wish)
    # Killed here, and gone on with from step 1, in whose repetition something else fails.
    again = loop_of(tmp_path, monkeypatch)
    again.load_state_dict(saved)
    again.end_step(1, wish)
    assert again._background.began == [], "its step has not come yet"
    again.record(2, [failed(ORIGINALS[5], "shop.ret")])
    again.end_step(2, wish)
    assert again._background.began == first._background.began and len(record_of(tmp_path)) == 1
    again._background.ready = synthetic(2)
    again.end_step(3, wish)
    assert again.made == ["note_add.k2.0#0", "note_add.k2.1#0"]
    third = loop_of(tmp_path, monkeypatch)
    third.load_state_dict(saved)
    third.record(2, [failed(ORIGINALS[5], "shop.ret")])
    third.end_step(2, wish)
    assert third._background.began == [] and third.made == ["note_add.k2.0#0", "note_add.k2.1#0"]


def test_a_torn_record_is_named(tmp_path, monkeypatch):
    (tmp_path / "rounds").mkdir()
    (tmp_path / "rounds" / "rounds.json").write_text('{"rounds": [{}]}')
    with pytest.raises(ValueError, match=r"rounds\.json: is no record of rounds"):
        loop_of(tmp_path, monkeypatch)


@settings(max_examples=60, deadline=None)
@given(
    rates=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 4)), max_size=30),
    cut=st.integers(0, 30),
    window=st.integers(1, 5),
)
def test_a_state_says_everything_that_later_steps_follow_from(rates, cut, window):
    section = SealSettings(**LOOP, window_steps=window)
    loop, resumed = (ClosedLoop(section, QuestioningConfiguration(), Path("/nowhere")) for _ in range(2))
    for step, (place, won) in enumerate(rates, 1):
        group = [
            solved(ORIGINALS[place], f"g{step}") if i < won else failed(ORIGINALS[place], group=f"g{step}")
            for i in range(4)
        ]
        told = loop.record(step, group)
        if step > cut:
            assert resumed.record(step, group) == told
        if step <= cut:
            resumed.load_state_dict(json.loads(json.dumps(loop.state_dict())))
    if len(rates) > cut or cut == 0:
        assert resumed.state_dict() == loop.state_dict()
    assert resumed.mastered == loop.mastered


@given(
    ids=st.lists(st.integers(0, 30).map(str), unique=True, min_size=1),
    added=st.lists(st.integers(0, 40).map(str), unique=True),
    taken=st.integers(0, 20),
)
def test_what_is_newest_comes_next_after_a_restart_too_and_nothing_is_lost_or_doubled(ids, added, taken):
    made = TaskCycle("r", ids, 1, shuffle=False, newest_first=True)
    made.take(taken, lambda _: 1.0)
    state = made.state_dict()
    before = state["left"]
    made.add(added)
    after = made.state_dict()["left"]
    new = [one for one in added if one not in ids] if taken else []
    assert sorted(after) == sorted(before + new) and after[: len(new)] == new
    assert [one for one in after if one not in new] == before
    # As after a kill: the ids are known before the state is, which says nothing of the new ones.
    resumed = TaskCycle("r", ids, 1, shuffle=False, newest_first=True)
    resumed.add(added)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == made.state_dict()


@settings(deadline=None)
@given(
    rounds=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    share=st.sampled_from([0.1, 0.3, 0.5, 1.0]),
    retired=st.sets(st.integers(0, 59)),
    data=st.data(),
)
def test_tasks_of_rounds_are_a_share_of_each_epoch_at_most_the_newest_first(rounds, share, retired, data):
    base = [f"s{i}" for i in range(20)]

    def mixture():
        return Mixture(MixtureSettings(use_original_tasks=False, synthetic_data_ratio=1.0), [], base)

    made, names, seen = mixture(), [], []
    most = max(1, int(share * 20))
    for number, count in enumerate(rounds):
        new = [f"r{number}.{i}" for i in range(count)]
        made.add_synthetic(new)
        made.focus(new, share)
        names = new + names
        made.retire(f"r{one // 12}.{one % 12}" for one in retired)
        awake = [name for name in names if name not in made.retired]
        cut = data.draw(st.integers(0, 3), "epochs before the kill")
        resumed = mixture()
        resumed.add_synthetic(names)
        resumed.focus(names, share)
        for epoch_number in range(6):
            if epoch_number == cut:
                resumed.load_state_dict(json.loads(json.dumps(made.state_dict())))
            epoch = made.draw()
            assert epoch_number < cut or resumed.draw() == epoch
            of_rounds = [name for name in epoch if name.startswith("r")]
            assert len(epoch) == 20 and len(of_rounds) == len(set(of_rounds)) == min(most, len(awake))
            if epoch_number == 0:
                assert set(awake[: min(len(of_rounds), len([one for one in new if one in awake]))]) <= set(of_rounds)
            seen += of_rounds
    assert not set(seen) - set(names)


def test_tasks_of_rounds_leave_the_others_their_places_once_all_have_been_seen():
    made = Mixture(
        MixtureSettings(use_original_tasks=False, synthetic_data_ratio=1.0), [], [f"s{i}" for i in range(30)]
    )
    made.draw()  # each of the 30 is seen; what joins now is all that waits
    for number in range(8):
        new = [f"r{number}.{i}" for i in range(64)]
        made.add_synthetic(new)
        made.focus(new, 0.3)
        epoch = made.draw()
        assert [name.partition(".")[0] for name in epoch if name in new] == [f"r{number}"] * 9
        assert sum(name.startswith("s") for name in epoch) == 21


@given(gone=st.sets(st.integers(0, 9)), drawn=st.integers(0, 3))
def test_retired_tasks_are_drawn_no_more_unless_all_are_and_original_ones_never_retire(gone, drawn):
    names = [f"s{i}" for i in range(10)]

    def mixture():
        return Mixture(MixtureSettings(synthetic_data_ratio=2.0), ["o0", "o1"], names)

    made, resumed = mixture(), mixture()
    for _ in range(drawn):
        made.draw()
    retired = {f"s{i}" for i in gone}
    made.retire([*retired, "o0", "nobody"])
    assert made.retired == retired
    resumed.load_state_dict(json.loads(json.dumps(made.state_dict())))
    for _ in range(4):
        epoch = made.draw()
        assert len(epoch) == 6 and {"o0", "o1"} <= set(epoch) and resumed.draw() == epoch
        assert len(gone) == 10 or not retired & set(epoch)


def resolved(tmp_path, *overrides):
    path = tmp_path / "synthetic.jsonl"
    write_objectives(path, synthetic(6))
    write_tasks(tmp_path / "train.jsonl", ORIGINALS)
    items = ["device=cpu", "actor_rollout_ref.model.path=x", f"experiment.root={tmp_path}", "data.train_batch_size=4"]
    items += ["actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    items += [f"task_manager.train_data_path={path}", "task_manager.mixture.synthetic_data_ratio=0.5"]
    return load(BASIC, [*items, *overrides]).settings


def history(step):
    """Rollouts of a step: all tasks of the first file are mastered, and the environment's own fail."""
    won = [solved(task, f"{step}-{task.task_id}") for task in synthetic(6)]
    return won + [failed(task, group=f"{step}-{task.task_id}") for task in ORIGINALS]


def run_of(settings, tmp_path, *, steps_per_epoch=1):
    """The tasks of a run and all of its parts that have to do with them, as the trainer has them."""
    tasks = TrainingTasks(settings, tmp_path / "train.jsonl")
    tasks.steps_per_epoch, tasks.last_step = steps_per_epoch, 99
    return tasks, TrainerParts([*parts(PartContext(settings, None, tasks)), tasks])


def drawn(settings, tmp_path):
    """What seven epochs and their checkpoints come to, with everything in between told of."""
    (made, run), found = run_of(settings, tmp_path), []
    for step in range(1, 8):
        found.append([row["task"] for batch in made.dataset.loader(4, list) for row in batch])
        metrics = run.after_rollouts(step, history(step))
        run.after_step(step)
        found.append(made.dataset.sampler.state_dict())
    folder = tmp_path / "checkpoint"
    run.save(folder, 7)
    run.close()
    return found, metrics, (folder / STATE).exists()


def test_off_everything_is_drawn_as_ever_and_on_what_is_mastered_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr(looping, "BackgroundQuestioning", FakeRounds)
    plain, metrics, saved = drawn(resolved(tmp_path), tmp_path)
    assert not saved and not any(name.startswith("closed_loop") for name in metrics)
    busy, metrics, saved = drawn(resolved(tmp_path, "recipes.seal.enable=true", "recipes.seal.every=1"), tmp_path)
    assert busy != plain and saved
    assert metrics["closed_loop/stuck"] == 8
    assert metrics["closed_loop/mastered"] == metrics["closed_loop/retired"] == 6


def test_new_tasks_come_first_in_the_next_epoch_and_a_resumed_run_draws_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(looping, "BackgroundQuestioning", FakeRounds)
    on = [f"recipes.seal.{key}" for key in ("enable=true", "every=1", "share=0.17")]
    settings = resolved(tmp_path, *on)
    made, run = run_of(settings, tmp_path, steps_per_epoch=5)
    made.dataset.draw()
    _, loops, _ = run.parts
    loops.after_rollouts(1, [failed(ORIGINALS[0])])
    run.after_step(1)
    loops._loops["pocket"]._background.ready = synthetic(3, start=50)
    run.after_step(2)
    run.save(tmp_path / "checkpoint", 2)
    resumed, again = run_of(settings, tmp_path, steps_per_epoch=5)
    resumed.dataset.epochs.load_state_dict(json.loads(json.dumps(made.dataset.epochs.state_dict())))
    again.restore(tmp_path / "checkpoint")
    names = [made.dataset.name(row) for row in made.dataset.draw()]
    # Of 12 places .17 are two.
    assert {"note_add.k2.50#0", "note_add.k2.51#0"} <= set(names) and len(names) == 12
    assert [resumed.dataset.name(row) for row in resumed.dataset.draw()] == names
    assert again.parts[1]._loops["pocket"].state_dict() == loops._loops["pocket"].state_dict()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["task_manager.mixture.synthetic_data_ratio=0"], "none is trained on"),
        (["task_manager.curriculum.synthesize_every_epochs=1"], "both make rounds"),
        (["recipes.seal.uncertain=[0.1, 0.9]"], "it is fixed at .*; remove it"),
        (["recipes.seal.every=0"], "every"),
        (["recipes.seal.budget_tasks=0"], "budget_tasks"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, overrides, words):
    with pytest.raises(ConfigError, match=words) as refused:
        resolved(tmp_path, "recipes.seal.enable=true", *overrides)
    assert "\n" not in str(refused.value)
