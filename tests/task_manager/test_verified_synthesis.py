"""Verified synthesis on gymnasium over the service."""

from __future__ import annotations

import pytest
from synthesis_driver import MindModel, kept_tasks, recheck, wrong_ones

pytestmark = pytest.mark.service


@pytest.mark.parametrize("world", ["FrozenLake-v1", "Taxi-v4"])
async def test_no_wrong_reference_is_kept(world, tmp_path):
    model = MindModel()
    tasks, funnel, findings = await kept_tasks(
        "gymnasium", model, tmp_path, seeds=4, list_params={"worlds": [world]}, check=recheck
    )
    assert tasks and wrong_ones("gymnasium", tasks) == []
    assert len(model.proposed) > len(tasks), "some were wrong on purpose"
    assert {task.evaluator for task in tasks} == {"state"} and findings == [None] * len(tasks)
    assert funnel.unchecked == 0 and 0 < funnel.passed < funnel.verified
