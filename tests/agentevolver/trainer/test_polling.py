from __future__ import annotations

import time

import pytest
from verl.trainer.ppo.v1 import replay_buffer

from agentevolver.trainer.polling import LONGEST_INTERVAL_S, POLL_INTERVAL_S, pace


@pytest.mark.parametrize(("look_s", "least", "most"), [(0.0, POLL_INTERVAL_S, 0.1), (0.004, 0.08, LONGEST_INTERVAL_S)])
def test_a_buffer_of_verls_waits_by_what_its_own_looks_take(
    monkeypatch: pytest.MonkeyPatch, look_s: float, least: float, most: float
) -> None:
    waits: list[float] = []
    looked_after: list[None] = []

    def kv_list() -> dict[str, dict[str, dict[str, object]]]:
        time.sleep(look_s)
        status = "finished" if len(waits) == 2 else "running"
        return {"val": {"g": {"is_prompt": True, "status": status, "global_steps": 1}}}

    monkeypatch.setattr(replay_buffer.tq, "kv_list", kv_list)
    monkeypatch.setattr(replay_buffer.tq, "kv_clear", lambda **_: None)
    buffer = replay_buffer.ReplayBuffer("sync", {}, None, "drop", {})

    def wait(partition_id: str, last_debug_time: float) -> float:
        waits.append(buffer.poll_interval)
        return last_debug_time

    monkeypatch.setattr(buffer, "_wait_for_next_poll", wait)
    pace(buffer, lambda: looked_after.append(None))
    buffer.sample(1, "val", 1)
    assert len(waits) == len(looked_after) == 2 and all(least <= one <= most for one in waits), waits
