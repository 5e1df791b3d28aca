"""What Ray says of a machine whose memory is short becomes one line with the processes."""

import pytest

from agentevolver.utils.errors import short_of_memory

TABLE = """Top 10 memory users:
PID\tMEM(GB)\tCOMMAND
30188\t6.06\tray::WorkerDict.actor_rollout_update_actor
30372\t4.98\tVLLM::EngineCore
24677\t0.11\t/opt/bin/python dashboard.py --host=127.0.0.1 --port=8265 --port-retries=0

Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/"""
HEADS = (
    "Memory on the node (IP: 10.0.0.1, ID: ab12) was 22.91GB used / 23.40GB limit (0.979060).",
    "Task was killed.\nMemory on the node (IP: 10.0.0.1, ID: ab12) where the task (actor ID: 3, name=W, pid=30188, "
    "memory used=6.06GB) was running was 22.91GB / 23.40GB (0.979060), which exceeds the threshold of 0.95.",
)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("before", ["", "ray::TaskRunner.run() (pid=1)\n(pid=1, worker ID=2)\n"])
def test_the_line_says_which_process_used_how_much(head, before):
    said = short_of_memory(f"{before}{head} {TABLE}")
    assert "\n" not in said and "22.91 of 23.40 GB" in said and "--port" not in said
    assert "update_act (pid 30188) 6.06 GB, VLLM::EngineCore (pid 30372) 4.98 GB, " in said


@pytest.mark.parametrize("text", ["", "ValueError: memory", "the worker died: SIGKILL", TABLE])
def test_another_error_says_nothing_of_memory(text):
    assert short_of_memory(text) is None
