"""Graders: from a finished rollout to an `Outcome`, or to a `GradingError`."""

from task_manager.graders.base import Grader, GradingError, Transcript
from task_manager.graders.registry import GRADERS, Graders, make_grader, register

__all__ = ["GRADERS", "Grader", "Graders", "GradingError", "Transcript", "make_grader", "register"]
