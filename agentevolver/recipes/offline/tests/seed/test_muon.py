"""Muon in fp32: it orthogonalizes, and goes where torch's own goes in bfloat16."""

from __future__ import annotations

import pytest
import torch

from agentevolver.recipes.offline.seed.muon import Muon, orthogonalized


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 40, 16), (2, 16, 40)])
def test_singular_values_come_near_one_and_singular_vectors_stay(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    made = orthogonalized(matrices)
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.6 and values.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    inner = left.mT @ made @ right.mT
    rest = inner - torch.diag_embed(torch.diagonal(inner, dim1=-2, dim2=-1))
    assert rest.abs().max() < 1e-4


def test_matrices_of_one_shape_do_not_mix() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(4, 8, 24)
    alone = torch.cat([orthogonalized(one[None]) for one in matrices])
    torch.testing.assert_close(orthogonalized(matrices), alone)


def test_three_steps_end_where_those_of_torch_do_but_for_its_bfloat16() -> None:
    torch.manual_seed(0)
    shapes = [(16, 16), (16, 16), (40, 16), (16, 40)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(one.detach().clone()) for one in ours]
    begin = [one.detach().clone() for one in ours]
    optimizers = (
        Muon(ours, lr=1e-2, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, first in zip(ours, theirs, begin, strict=True):
        moved, differ = (one - first).norm(), (one - other).norm()
        assert differ < 0.03 * moved


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"matrices alone, not a parameter of shape \(3,\)"):
        Muon([torch.nn.Parameter(torch.zeros(3))], lr=1e-2, weight_decay=0.0)
