"""Graders: from a finished rollout to an `Outcome`, or to a `GradingError`."""

from task_manager.graders.base import Grader, GradingError, Transcript
from task_manager.graders.registry import Graders, make_grader

__all__ = ["Grader", "Graders", "GradingError", "Transcript", "make_grader"]
