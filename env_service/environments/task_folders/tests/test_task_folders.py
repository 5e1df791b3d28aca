"""Tasks are the folders below the root, and nothing else is."""

import pytest

from env_service.environments.task_folders.env import TaskFoldersEnv


def test_the_environment_lists_folders_and_reads_no_others(tmp_path):
    task = tmp_path / "tasks" / "train" / "greet"
    (task / "tests").mkdir(parents=True)
    (task / "tests" / "test.sh").write_text("exit 0")
    (task / "instruction.md").write_text("Write an answer.")
    params = {"root": str(tmp_path / "tasks")}
    assert TaskFoldersEnv.get_query_list("train", params) == ["train/greet"]
    (tmp_path / "instruction.md").write_text("secret")
    for task_id in ("train/none", "..", "../../etc"):
        with pytest.raises(ValueError, match="no task"):
            TaskFoldersEnv(task_id, "i", params)
    with pytest.raises(ValueError, match="is no folder: say where the tasks are"):
        TaskFoldersEnv("train/greet", "i", {"root": str(tmp_path / "none")})
    with pytest.raises(ValueError, match="agent_container"):
        TaskFoldersEnv("train/greet", "i", params).evaluate()
