import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advantage_processor import AttributionSettings
from advantage_processor.batch import make_batch, pad_step_ids
from advantage_processor.explain import explain_credit
from advantage_processor.pipeline import Processor, StageError
from agentevolver.types import Attribution, LabelStatus
from tests.advantage_processor import reference
from tests.advantage_processor.records import record, rows_of

LABELS = AttributionSettings(enable=True)


def process(records, config=LABELS, *, samples=1, step=1, withdrawn=(), **options):
    keys, ids = rows_of(records, samples)
    step_ids = pad_step_ids(ids, max(map(len, ids), default=0))
    trained = [i for i in range(len(keys)) if i not in withdrawn]
    batch = make_batch(step, records, [keys[i] for i in trained], step_ids[trained])
    return batch, Processor(config, **options).process(batch)


def per_step(batch, result):
    return [row[:length] for row, length in zip(result.advantages.tolist(), batch.lengths.tolist(), strict=True)]


GOLDEN = [record("g", 0, "GBG", 1.0), record("g", 1, "BB", 0.0), record("g", 2, "GGGB", 1.0)]


def test_the_golden_group_reaches_its_tokens():
    batch, result = process(GOLDEN)
    expected = [[0.823954, 0.718235, 0.812826], [-1.603395, -1.508804], [0.929673, 0.823954, 0.718235, 0.612516]]
    for row, values, ids in zip(result.tokens(batch), expected, batch.step_ids, strict=True):
        assert row.tolist() == pytest.approx([values[k] if k >= 0 else 0.0 for k in ids.tolist()], abs=1.5e-6)
    records = result.credit(batch)
    assert list(records["g_1"].advantages) == pytest.approx(expected[1], abs=1.5e-6)
    assert sum(records["g_0"].step_rewards) == pytest.approx(expected[0][0], abs=1e-5)


PARTED = (
    LABELS,
    AttributionSettings(enable=True, adca_grpo={"orm_distribution": "all_steps", "enable_length_normalization": True}),
    AttributionSettings(enable=True, adca_grpo={"orm_distribution": "only_prm"}),
    AttributionSettings(enable=True, attributor="gigpo"),
    AttributionSettings(),
)


@pytest.mark.parametrize("config", PARTED)
def test_outcome_label_and_what_comes_after_are_the_advantage(config):
    batch, result = process([*GOLDEN, record("g", 3, steps=2, score=0.0)], config)
    for credit in result.credit(batch).values():
        assert credit.parts is not None
        for one in explain_credit(credit):
            assert one.outcome + one.label + one.later == pytest.approx(one.advantage, abs=5e-6)
            assert one.scale is one.rest is None


@pytest.mark.thorough
@settings(max_examples=15, deadline=None)
@given(
    flags=st.lists(
        st.tuples(st.integers(0, 2), st.text("GB", min_size=1, max_size=6), st.sampled_from([0.0, 1.0])),
        min_size=1,
        max_size=8,
    ),
    samples=st.integers(2, 3),
)
def test_a_trajectory_has_one_vote_however_many_rows_it_became(flags, samples):
    records = [record(f"g{group}", i, labels, score) for i, (group, labels, score) in enumerate(flags)]
    _, once = process(records)
    batch, result = process(records, samples=samples)
    assert torch.equal(result.advantages, once.advantages)
    assert result.credit(batch).keys() == {one.trajectory_id for one in records}


def test_failed_and_withdrawn_rollouts_take_no_part():
    failed = record("g", 3, score=None, steps=2)
    lonely = record("h", 0, "GB", 1.0)
    records = [*GOLDEN, failed, lonely]
    batch, result = process(records, withdrawn=[3, 4])
    _, alone = process(GOLDEN)
    assert torch.equal(result.advantages[:3], alone.advantages)
    assert set(result.credit(batch)) == {"g_0", "g_1", "g_2"}
    same = {name: value for name, value in alone.metrics.items() if not name.startswith("timing")}
    assert {name: value for name, value in result.metrics.items() if name in same} == same


def test_a_row_of_no_trajectory_is_refused_by_name():
    keys, ids = rows_of(GOLDEN)
    with pytest.raises(ValueError, match="row other_0_0 belongs to no trajectory of step 4"):
        make_batch(4, GOLDEN, [*keys[:2], "other_0_0"], pad_step_ids(ids, 12))


def test_a_token_of_a_step_that_never_was_is_refused_by_name():
    keys, ids = rows_of(GOLDEN)
    ids[1][0] = 2
    with pytest.raises(ValueError, match="row g_1_0 has tokens of step 2, its trajectory has 2 steps"):
        make_batch(1, GOLDEN, keys, pad_step_ids(ids, 12))


def test_a_step_in_which_everything_failed_gives_nothing_and_does_not_stop():
    records = [record("g", i, score=None, steps=0) for i in range(3)]
    batch = make_batch(1, records, ["g_0_0", "g_1_0", "g_2_0"], pad_step_ids([[-1]] * 3, 1))
    result = Processor(LABELS).process(batch)
    assert result.tokens(batch).shape == (3, 1) and not result.tokens(batch).any()
    nothing = make_batch(1, [], [], pad_step_ids([], 0))
    assert Processor(LABELS).process(nothing).tokens(nothing).shape == (0, 0)


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_unlabelled_trajectories_get_outcome_credit_and_are_counted(status):
    records = [record("g", 0, "GBG", 1.0), record("g", 1, score=0.0, steps=2), record("g", 2, "GGGB", 1.0)]
    records[1].attribution = Attribution(LabelStatus(status), kind="timeout" if status == "failed" else "", calls=1)
    batch, result = process(records)
    assert per_step(batch, result)[1] == pytest.approx([-1.414214] * 2, abs=1e-6)
    assert result.metrics["prm/unlabelled"] == 1.0
    assert result.metrics[f"prm/{status}"] == 1.0
    assert result.metrics["prm/labelled_rate"] == pytest.approx(2 / 3)


def test_metrics_alone_leave_the_advantages_as_they_are():
    _, plain = process(GOLDEN, AttributionSettings())
    _, watched = process(GOLDEN, AttributionSettings(enable=False, adca_grpo={"enable_adca_metric": True}))
    assert torch.equal(plain.advantages, watched.advantages)
    assert watched.metrics["prm/labelled"] == 3.0


def test_synthetic_tasks_are_scaled_where_data_is_mixed():
    records = [
        record("o", 0, "G", 1.0),
        record("o", 1, "B", 0.0),
        record("s", 0, "G", 1.0, synthetic=True),
        record("s", 1, "B", 0.0, synthetic=True),
    ]
    _, plain = process(records)
    _, hybrid = process(records, hybrid_data=True)
    assert torch.equal(hybrid.advantages[:2], plain.advantages[:2])
    assert torch.allclose(hybrid.advantages[2:], 0.5 * plain.advantages[2:])
    assert hybrid.metrics["advantage/synthetic_share"] == 0.5
    for told in records[2:]:
        told.task.metadata["advantage_scale"] = 0.75
    assert torch.allclose(process(records, hybrid_data=True)[1].advantages[2:], 0.75 * plain.advantages[2:])


@pytest.mark.parametrize("rewards", [[0.0, 0.0], [float("nan"), 1.0]])
def test_an_environment_that_gives_no_usable_rewards_leaves_outcome_credit(rewards):
    config = AttributionSettings(enable=True, attributor="env")
    records = [record("g", 0, score=1.0, rewards=rewards, steps=2), record("g", 1, score=0.0, steps=2)]
    batch, result = process(records, config)
    assert per_step(batch, result) == [pytest.approx([1.0, 1.0]), pytest.approx([-1.0, -1.0])]


def test_anchor_states_add_to_the_outcome_advantage():
    config = AttributionSettings(enable=True, attributor="gigpo", gigpo={})
    records = [
        record("g", 0, score=1.0, actions=["look", "open"], observations=["door", "hall"]),
        record("g", 1, score=0.0, actions=["look", "kick"], observations=["door", "wall"]),
    ]
    batch, result = process(records, config)
    outcome = reference.grpo([1.0, 0.0], [0, 0], [True, True])
    credit = reference.gigpo(
        [
            {"states": ["", "door"], "rewards": [0.0, 1.0], "group": 0, "valid": True},
            {"states": ["", "door"], "rewards": [0.0, 0.0], "group": 0, "valid": True},
        ],
        0.95,
    )
    for found, advantage, steps in zip(per_step(batch, result), outcome, credit, strict=True):
        assert found == pytest.approx([advantage + value for value in steps])
    assert result.metrics["gigpo/shared_rate"] == 1.0
    assert result.metrics["gigpo/anchor_states"] == 2.0


def test_a_users_stage_is_found_by_its_entry_point(monkeypatch):
    from importlib.metadata import EntryPoint

    point = EntryPoint("double", "tests.advantage_processor.custom_stages:Double", "agentevolver.advantage_stages")
    monkeypatch.setattr(
        "advantage_processor.pipeline.entry_points", lambda group: [point] if group == point.group else []
    )
    _, doubled = process(GOLDEN, AttributionSettings(enable=True, stages=["outcome", "attribution", "double"]))
    assert torch.allclose(doubled.advantages, 2 * process(GOLDEN)[1].advantages)
    with pytest.raises(
        StageError,
        match=r"'nothing' is not known: write one of .*\battribution, .*\bdouble, hybrid_scale, outcome",
    ):
        Processor(AttributionSettings(stages=["nothing"]))


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        ({"use": "outcome", "singelton": "neutral"}, "singelton"),
        ({"use": "hybrid_scale", "scale": -1}, "from 0 on"),
        ("no_such_module_of_mine:Stage", "cannot be imported"),
    ],
)
def test_a_stage_that_cannot_be_made_is_refused_before_training(stage, problem):
    with pytest.raises(StageError, match=problem):
        Processor(AttributionSettings(stages=[stage]))


@pytest.mark.parametrize(
    ("name", "problem"), [("WrongShape", "shape"), ("Infinite", "finite"), ("Everywhere", "batch.mask")]
)
def test_a_stage_that_breaks_its_contract_is_named(name, problem):
    records = [*GOLDEN, record("g", 3, score=None, steps=2)]
    config = AttributionSettings(stages=["outcome", f"tests.advantage_processor.custom_stages:{name}"])
    with pytest.raises(StageError, match=f"{name}.*{problem}"):
        process(records, config, withdrawn=[3])
