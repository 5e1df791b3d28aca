"""Trajectories of which a test says only what it is about."""

from typing import Any

from agentevolver.types import Trajectory


def trajectory(**record: Any) -> Trajectory:
    """A rollout of what a record of it says; steps and everything else may be left out."""
    step = {"index": 0, "action": "", "observation": ""}
    record["task"] = {"task_id": "t", **record.get("task", {})}
    record["steps"] = [step | told for told in record.get("steps", ())]
    return Trajectory.from_dict({"messages": [], "stop_reason": "finished", **record})
