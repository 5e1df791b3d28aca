"""Stages of a user's own, as the tests of the pipeline load them by their dotted path."""

import torch

from advantage_processor.pipeline import Advantages


class Double:
    def __init__(self, context, *, factor=2.0):
        self.factor = factor

    def __call__(self, batch, advantages):
        return Advantages(advantages * self.factor, {"double/factor": self.factor})


class WrongShape:
    def __init__(self, context):
        pass

    def __call__(self, batch, advantages):
        return Advantages(torch.zeros(1, 1, dtype=torch.float64))


class Infinite(WrongShape):
    def __call__(self, batch, advantages):
        return Advantages(advantages + float("inf"))


class Everywhere(WrongShape):
    def __call__(self, batch, advantages):
        return Advantages(advantages + 1.0)
