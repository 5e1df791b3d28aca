import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.trainer.verl_plugin import varlen_attention as module
from agentevolver.trainer.verl_plugin.varlen_attention import NAME, register, sequence_bounds, varlen_attention

register()
lengths_of_rows = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def packed(lengths):
    return torch.cat([torch.arange(length) for length in lengths])[None]


def states(tokens, heads, key_heads, size=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(1, n, tokens, size, generator=draw, dtype=torch.float64) for n in (heads, key_heads, key_heads)]


def masked(query, key, value, lengths, scaling, window):
    """The same by one mask over all tokens: may this token see that one?"""
    tokens, group = sum(lengths), query.shape[1] // key.shape[1]
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(tokens)
    seen = (row[:, None] == row) & (place <= place[:, None]) & (place > place[:, None] - (window or tokens))
    scores = (
        query
        @ key.repeat_interleave(group, 1).transpose(-1, -2)
        * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    )
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value.repeat_interleave(group, 1)).transpose(1, 2)


@given(lengths_of_rows)
def test_a_sequence_begins_where_a_position_does_not_follow_the_last(lengths):
    bounds = sequence_bounds(packed(lengths))
    assert bounds.lengths == lengths and bounds.longest == max(lengths) and bounds.cumulative.dtype == torch.int32
    assert bounds.cumulative.tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]


def test_a_row_that_begins_in_the_middle_of_a_sequence_is_not_joined_to_the_one_before():
    assert sequence_bounds(torch.tensor([[5, 6, 7, 3, 4, 0, 0, 1]])).lengths == [3, 2, 1, 2]


def test_bounds_are_read_once_per_tensor_and_anew_where_it_was_written_to_or_another_takes_its_place():
    positions = packed([3, 2])
    assert sequence_bounds(positions) is sequence_bounds(positions)
    positions[0, 3:] = torch.tensor([3, 4])
    assert sequence_bounds(positions).lengths == [5]
    for lengths in ([4], [1, 3], [2, 2]):  # each is freed before the next is made, and may have its address
        assert sequence_bounds(packed(lengths)).lengths == lengths
    with torch.inference_mode():
        assert sequence_bounds(packed([2, 1])).lengths == [2, 1]


@pytest.mark.thorough
@given(
    lengths=lengths_of_rows,
    groups=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    scaling=st.sampled_from([None, 0.1]),
    window=st.one_of(st.none(), st.integers(1, 12)),
)
def test_each_token_sees_those_before_it_in_its_own_sequence_alone(lengths, groups, scaling, window):
    parts = [x.requires_grad_() for x in states(sum(lengths), *groups)]
    again = [x.detach().clone().requires_grad_() for x in parts]
    output, weights = varlen_attention(
        torch.nn.Module(), *parts, None, scaling=scaling, sliding_window=window, position_ids=packed(lengths)
    )
    expected = masked(*again, lengths, scaling, window)
    assert weights is None
    torch.testing.assert_close(output, expected)
    output.square().sum().backward()
    expected.square().sum().backward()
    for a, b in zip(parts, again, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])},
            "takes one packed row, .*: set actor_rollout_ref.model.use_remove_padding",
        ),
        ({"position_ids": packed([5])[None].expand(3, 1, 5)}, r"not \(3, 1, 5\)"),
        ({"s_aux": torch.zeros(2)}, "has no attention sinks"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(changed, message):
    arguments = {"attention_mask": None, "position_ids": packed([5]), **changed}
    with pytest.raises(ValueError, match=f"attn_implementation={NAME} .*{message}"):
        varlen_attention(torch.nn.Module(), *states(5, 2, 2), **arguments)


@pytest.mark.parametrize("window", [None, 4])
def test_the_flash_kernel_is_asked_for_what_the_other_path_computes(monkeypatch, window):
    """No GPU here, so the kernel is played by a mask; what it is told is checked, in the form of torch's own
    signature."""
    import inspect

    from torch.nn.attention import varlen

    lengths, told = [7, 1, 5], {}

    def kernel(*args, **kwargs):
        told.update(inspect.signature(varlen_attn).bind(*args, **kwargs).arguments)
        q, k, v = (told[name].transpose(0, 1)[None] for name in ("query", "key", "value"))
        assert told["window_size"][1] == 0, "causal"
        left = told["window_size"][0]
        bounds = told["cu_seq_q"].diff().tolist()
        return masked(q, k, v, bounds, told["scale"], None if left < 0 else left + 1)[0]

    varlen_attn = varlen.varlen_attn
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    monkeypatch.setattr(module, "_asks_for_gqa", lambda: "enable_gqa" in inspect.signature(varlen_attn).parameters)
    monkeypatch.setattr(module, "_fits_flash", lambda query: True)
    parts = states(sum(lengths), 4, 2)
    output, _ = varlen_attention(
        torch.nn.Module(), *parts, None, scaling=0.2, sliding_window=window, position_ids=packed(lengths)
    )
    torch.testing.assert_close(output, masked(*parts, lengths, 0.2, window))
    assert told["max_q"] == told["max_k"] == 7 and told["cu_seq_q"].tolist() == [0, 7, 8, 13]
