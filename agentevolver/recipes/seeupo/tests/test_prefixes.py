"""Rows cut after their last token in the mask, and a pass's columns at their old length again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_from_nested

from agentevolver.recipes.seeupo import prefixes


def ragged(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def batch(rows):
    """Of (prompt's length, mask) a row."""
    masks = [torch.tensor(mask) for _, mask in rows]
    whole = [torch.arange(100, 100 + prompt + len(mask)) for prompt, mask in rows]
    return TensorDict(
        {
            "prompts": ragged(ids[:prompt] for ids, (prompt, _) in zip(whole, rows, strict=True)),
            "responses": ragged(ids[prompt:] for ids, (prompt, _) in zip(whole, rows, strict=True)),
            "response_mask": ragged(masks),
            "input_ids": ragged(whole),
            "position_ids": ragged(torch.arange(len(ids)) for ids in whole),
            "routed_experts": ragged(torch.ones(len(ids), 2, 3) for ids in whole),
            "mini_batch_rows": torch.ones(len(rows)),
            "uid": NonTensorStack(*map(str, range(len(rows)))),
        },
        batch_size=[len(rows)],
    )


def test_columns_are_cut_by_hand():
    data = batch([(2, [1, 0, 1, 0, 0]), (1, [0, 0]), (3, [0, 1])])
    before = {name: [row.tolist() for row in data[name].unbind()] for name in ("input_ids", "response_mask")}
    shortened = prefixes.cut(data)
    assert [row.tolist() for row in shortened["response_mask"].unbind()] == [[1, 0, 1], [0], [0, 1]]
    assert [row.tolist() for row in shortened["input_ids"].unbind()] == [
        [100, 101, 102, 103, 104], [100, 101], [100, 101, 102, 103, 104],
    ]  # fmt: skip
    assert [row.tolist() for row in shortened["responses"].unbind()] == [[102, 103, 104], [101], [103, 104]]
    assert shortened["position_ids"][0].tolist() == [0, 1, 2, 3, 4]
    assert [tuple(row.shape) for row in shortened["routed_experts"].unbind()] == [(5, 2, 3), (2, 2, 3), (5, 2, 3)]
    assert [len(row) for row in shortened["prompts"].unbind()] == [2, 1, 3]
    assert shortened["mini_batch_rows"].tolist() == [1.0, 1.0, 1.0]
    assert list(shortened["uid"]) == ["0", "1", "2"]
    assert {name: [row.tolist() for row in data[name].unbind()] for name in before} == before


@given(
    st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, 1), min_size=1, max_size=8)), min_size=1, max_size=5)
)
def test_the_response_of_a_pass_over_cut_rows_is_that_of_whole_rows_under_the_mask(rows):
    """A pass that gives a token's log-prob as its own id, one place to the left as verl has it."""
    data = batch(rows)
    shortened = prefixes.cut(data)
    shifted = ragged(torch.roll(row, -1).double() for row in shortened["input_ids"].unbind())
    output = TensorDict({"log_probs": shifted}, batch_size=[len(rows)])
    whole = prefixes.filled(output, data)["log_probs"]
    assert [len(row) for row in whole.unbind()] == [len(row) for row in data["input_ids"].unbind()]
    found = response_from_nested(whole, data["response_mask"])
    for row, mask, ids in zip(found.unbind(), data["response_mask"].unbind(), data["responses"].unbind(), strict=True):
        assert torch.equal(row * mask, ids * mask.double())


def test_a_row_whose_last_token_is_in_the_mask_stays_as_it_is():
    data = batch([(2, [1, 0, 1]), (1, [1])])
    shortened = prefixes.cut(data)
    for name in ("input_ids", "responses", "response_mask", "position_ids"):
        assert torch.equal(shortened[name].values(), data[name].values())


def test_rows_with_several_positions_a_token_stay_whole():
    data = batch([(2, [1, 0, 0])])
    data["position_ids"] = torch.zeros(1, 4, 5)
    assert prefixes.cut(data) is data


@pytest.mark.parametrize("asked", [True, False, None])
def test_the_mark_is_taken_off(asked):
    data = batch([(2, [1, 0, 0])])
    if asked is not None:
        tu.assign_non_tensor(data, **{prefixes.KEY: asked})
    assert prefixes.is_asked(data) is bool(asked)
    assert prefixes.KEY not in data.keys()  # noqa: SIM118 - a TensorDict iterates over its rows
