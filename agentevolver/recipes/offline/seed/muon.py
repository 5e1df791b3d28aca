"""Muon for the matrices of a seed policy, in fp32: `torch.optim.Muon` computes in bfloat16, which most CPUs emulate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Coefficients of the quintic whose iteration moves singular values near 1 (Jordan et al., "Muon", 2024)."""
STEPS = 5


def orthogonalized(matrices: Tensor) -> Tensor:
    """Return matrices (batch, rows, columns) with the same singular vectors and singular values between about .7 and
    1.2."""
    a, b, c = COEFFICIENTS
    is_tall = matrices.size(-2) > matrices.size(-1)
    x: Tensor = matrices.mT if is_tall else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized; step sizes match AdamW's (Liu et al., arXiv 2502.16982, equation 4).

    Matrices of one shape are orthogonalized together. Raises ValueError for a parameter that is no matrix.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            if wrong := next((tuple(p.shape) for p in group["params"] if p.ndim != 2), None):
                raise ValueError(f"Muon takes matrices alone, not a parameter of shape {wrong}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                updates = torch.stack([self._momentum(parameter, group["momentum"]) for parameter in parameters])
                size = group["lr"] * 0.2 * math.sqrt(max(shape))
                for parameter, update in zip(parameters, orthogonalized(updates), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-size)

    def _momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        assert parameter.grad is not None
        average: Tensor = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
        average.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(average, momentum)
