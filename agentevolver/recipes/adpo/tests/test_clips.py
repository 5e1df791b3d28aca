"""Upper clips of a row's own: who wins, what the actor is given after a shuffle, and what the clip then does."""

import logging
import math
import random
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transfer_queue import KVBatchMeta
from verl.utils.metric import Metric

from advantage_processor.settings import StageSettings
from agentevolver.config.loss_modes import BOOSTED, inert_clips
from agentevolver.recipes.adpo.ambiguity import BUCKETS, P_HAT, PHatError, upper_clip
from agentevolver.recipes.adpo.clip import AmbiguityClip
from agentevolver.trainer import row_clips, update
from agentevolver.trainer.loss import CLIP_COLUMN, GROUP_COLUMN, GUIDED_COLUMN, finish_metrics, selective_ppo_loss
from agentevolver.trainer.row_clips import ClipWatch, RowClips
from agentevolver.trainer.update import arrange
from agentevolver.types import RowKey
from experience_manager.settings import ExperienceSettings
from tests.agentevolver.trainer.memory_queue import Queue
from tests.agentevolver.trainer.test_loss import HIGH, Batch, config
from tests.trajectories import trajectory

USUAL = 0.2
NOBODY = ExperienceSettings()
GUIDING = ExperienceSettings(train_rollout_mode="all", reme={"enable_context_generator": True})
ADPO = StageSettings(use="ambiguity")


def rollout(name, p=None, *, guided=False, kept=False, score=1.0, **task):
    group, _, number = name.partition("_")
    return trajectory(
        group_id=group,
        rollout_id=int(number),
        task={"metadata": {P_HAT: p}} | task,
        outcome={"score": score, "success": score >= 1},
        guidance={"injected": "tip", "keep": kept} if guided else None,
        guidance_wanted=guided,
    )


class HalfAsMuch:
    """A rule of a user's own, for the task `t` alone."""

    def __init__(self, usual, *, only):
        self.usual, self.only = usual, only

    def __call__(self, one):
        return self.usual / 2 if one.rollout_id == self.only else None


def test_the_sections_under_test_do_guide():
    assert GUIDING.guides_training and GUIDING.strips and GUIDING.selective_boosting
    assert not NOBODY.guides_training


def test_a_boosted_guided_rollout_keeps_its_clip_and_all_others_have_that_of_their_task():
    rules = RowClips(GUIDING, [ADPO], USUAL)
    told = rules.of(
        [
            rollout("a_0", 0.3, guided=True),
            rollout("a_1", 0.3, guided=True, kept=True),
            rollout("a_2", 0.3),
            rollout("b_0", None),
        ]
    )
    assert told.bounds == pytest.approx({"a_0": GUIDING.off_cliprange_high, "a_1": 0.3, "a_2": 0.3, "b_0": USUAL})
    assert told.boosted == {"a_0"}
    assert {name: BUCKETS[place] for name, place in told.groups.items()} == {
        **dict.fromkeys(("a_0", "a_1", "a_2"), "low"),
        "b_0": "none",
    }


def test_guidance_alone_and_p_alone_need_not_know_each_other():
    guided = RowClips(GUIDING, [], USUAL)
    assert guided.columns == (GUIDED_COLUMN, CLIP_COLUMN) and not guided.groups
    nowhere = {"metadata": {}}  # a task without p is no concern of guidance
    assert guided.of([rollout("a_0", guided=True, **nowhere), rollout("a_1", **nowhere)]).bounds == {
        "a_0": GUIDING.off_cliprange_high,
        "a_1": USUAL,
    }
    ambiguous = RowClips(NOBODY, [ADPO], USUAL)
    assert ambiguous.columns == (CLIP_COLUMN, GROUP_COLUMN)
    assert not RowClips(NOBODY, [], USUAL).active


def test_the_first_rule_that_applies_wins():
    own = StageSettings(use=f"{__name__}:HalfAsMuch", only=0)
    told = RowClips(NOBODY, [own, ADPO], USUAL).of([rollout("a_0", 0.3), rollout("a_1", 0.3)])
    assert told.bounds == pytest.approx({"a_0": 0.1, "a_1": 0.3})
    told = RowClips(NOBODY, [ADPO, own], USUAL).of([rollout("a_0", 0.3), rollout("a_1", 0.3)])
    assert told.bounds == pytest.approx({"a_0": 0.3, "a_1": 0.3})


def test_a_task_that_says_no_p_is_an_error():
    with pytest.raises(PHatError):
        RowClips(NOBODY, [ADPO], USUAL).of([rollout("a_0", metadata={})])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"use": "moon"}, r"'moon' is not known: write one of ambiguity, or package.module:Name"),
        ({"use": "no.such:Rule"}, "cannot be imported"),
        ({"use": "ambiguity", "lo": 0.9}, "the smaller one first"),
        ({"use": "ambiguity", "bonus": -1}, "bonus = -1"),
        ({"use": "ambiguity", "eps": 1}, "eps"),
    ],
)
def test_a_rule_that_is_none_is_refused_by_name(rule, message):
    with pytest.raises(ValueError, match=message):
        RowClips(NOBODY, [StageSettings(**rule)], USUAL)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_row_keeps_its_own_numbers_through_balancing_and_mini_batches(data):
    """Rows are tagged by their key, shuffled, padded, told, cut into mini-batches, and compared in the end."""
    ranks, steps = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    shares = data.draw(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=5))
    told = [rollout(f"{group:06d}_{i}", p) for group, p in enumerate(shares) for i in range(2)]
    expected = {one.trajectory_id: upper_clip(one.task.metadata[P_HAT], USUAL, 0.3, 0.8, 0.1) for one in told}
    keys = [f"{one.trajectory_id}_{row}" for one in told for row in range(1 + one.rollout_id)]
    padding = [f"padding-{i}" for i in range(-len(keys) % (ranks * steps))]
    keys += padding
    random.Random(data.draw(st.integers(0, 9))).shuffle(keys)
    queue = Queue()
    queue.rows = {key: {"response_mask": torch.ones(2)} for key in keys}
    batch = KVBatchMeta(
        keys=list(keys),
        tags=[{"is_padding": key in padding} for key in keys],
        partition_id="train",
        fields=["advantages"],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "tq", queue)
        patch.setattr(row_clips, "tq", queue)
        rows = [i for i, key in enumerate(keys) if key not in padding]
        assert RowClips(NOBODY, [ADPO], USUAL).tell(batch, rows, random.Random(1).sample(told, len(told))) == {}
        arrange(batch, rows, ranks, steps, seed=5)
    assert sorted(batch.keys) == sorted(keys) and CLIP_COLUMN in batch.fields and GROUP_COLUMN in batch.fields
    for key in batch.keys:
        known = USUAL if key in padding else expected[RowKey.of(key).trajectory_id]
        assert float(queue.rows[key][CLIP_COLUMN]) == pytest.approx(known, abs=1e-6)


def ambiguous(rows, shares, usual=HIGH):
    """A micro-batch as the actor has it, with the clips of `shares`."""
    batch = Batch(rows, None, [upper_clip(p, usual, 0.3, 0.8, 0.1) for p in shares])
    rule = AmbiguityClip(usual)
    batch.data[GROUP_COLUMN] = torch.tensor([float(rule.group(rollout("a_0", p))) for p in shares])
    return batch


def finished(metrics):
    sums = {name: metric.aggregate() for name, metric in metrics.items() if isinstance(metric, Metric)}
    return finish_metrics(sums, BUCKETS)


def at(ratio, advantage):
    return {"log_ratio": [math.log(ratio)], "advantage": [advantage], "mask": [1]}


@pytest.mark.parametrize("mode", [mode for mode in BOOSTED if mode != "cispo"])
def test_a_ratio_between_the_clips_flows_at_low_p_and_stops_at_high_p(mode):
    """Usual clip .28, so 1.35 lies between it and .38, the clip at p = .3; failures know no upper clip."""
    batch = ambiguous([at(1.35, 1.0), at(1.35, 1.0), at(1.35, 1.0), at(1.35, -1.0)], [0.3, 0.8, None, 0.3])
    _, gradient, metrics = batch.run(partial(selective_ppo_loss, config(mode, "token-sum"), groups=BUCKETS))
    assert gradient.tolist() == pytest.approx([-1.35, 0.0, 0.0, 1.35], abs=1e-5)
    done = finished(metrics)
    assert done["actor/clip_hi"] == 0.5 and done["actor/clip_freed"] == 0.25
    assert done["actor/clip_hi/high"] == done["actor/clip_hi/none"] == 1.0 and done["actor/clip_hi/low"] == 0.0
    assert done["actor/clip_freed/low"] == 0.5 and "actor/clip_hi/middle" not in done
    assert not any(name.endswith("_sum") for name in done) and "actor/pg_clipfrac" in metrics


def test_ratio_and_clips_of_the_description():
    """eps .2: r = 1.25 at p = .3 is under 1.3, at p = .8 over 1.2."""
    chosen = config("vanilla", "token-sum")
    object.__setattr__(chosen, "clip_ratio_high", 0.2)
    for p, expected in ((0.3, -1.25), (0.8, 0.0)):
        _, gradient, _ = ambiguous([at(1.25, 1.0)], [p], 0.2).run(partial(selective_ppo_loss, chosen, groups=BUCKETS))
        assert gradient.tolist() == pytest.approx([expected], abs=1e-5)


def test_without_a_wider_clip_the_loss_is_verls_to_the_last_bit():
    rows = [at(1.35, 1.0), at(0.5, -1.0), at(1.1, 0.7)]
    plain = Batch(rows).run(partial(selective_ppo_loss, config()))
    told = ambiguous(rows, [0.9, None, 0.8]).run(partial(selective_ppo_loss, config(), groups=BUCKETS))
    assert plain[0] == told[0] and torch.equal(plain[1], told[1])


def policy_gradient_steps(minis):
    """Train a softmax over 5 actions on a batch of 64 in so many mini-batches; returns the metrics of the batch."""
    torch.manual_seed(0)
    logits = torch.zeros(5, requires_grad=True)
    actions = torch.randint(0, 5, (64,))
    advantages = torch.where(actions == 0, 1.5, -0.4)
    old = torch.log_softmax(logits, 0).detach()
    optimiser = torch.optim.SGD([logits], lr=4.0)
    sums = {}
    for part in torch.arange(64).chunk(minis):
        now = torch.log_softmax(logits, 0)
        rows = [
            {"log_ratio": [float((now - old)[a].detach())], "advantage": [float(advantages[i])], "mask": [1]}
            for i, a in zip(part.tolist(), actions[part].tolist(), strict=True)
        ]
        batch = ambiguous(rows, [0.3 if i % 2 else 0.8 for i in part.tolist()])
        _, gradient, metrics = batch.run(partial(selective_ppo_loss, config(), groups=BUCKETS))
        optimiser.zero_grad()
        now[actions[part]].backward(gradient)
        optimiser.step()
        for name, metric in metrics.items():
            if name.endswith("_sum"):
                sums[name] = sums.get(name, 0.0) + metric.aggregate()
    return finish_metrics(sums, BUCKETS)


def test_four_mini_batches_reach_the_clip_and_one_does_not():
    assert policy_gradient_steps(4)["actor/clip_hi"] > 0
    alone = policy_gradient_steps(1)
    assert alone["actor/clip_hi"] == alone["actor/clip_freed"] == 0.0
    assert inert_clips(4) is None and "ppo_mini_batch_size" in inert_clips(1)


def test_a_clip_that_made_no_difference_is_told_of_once(caplog):
    with caplog.at_level(logging.WARNING):
        watch = ClipWatch(steps=3)
        for _ in range(8):
            watch.look({"actor/clip_hi": 0.0, "actor/clip_freed": 0.0})
        assert [record.message for record in caplog.records if "in 3 training steps" in record.message]
        assert len(caplog.records) == 1
        watch = ClipWatch(steps=3)
        for reached in (0.0, 0.01, 0.0, 0.0, 0.0, 0.0):
            watch.look({"actor/clip_hi": reached})
    assert len(caplog.records) == 1
