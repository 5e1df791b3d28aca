"""The example, the commands and the task on the page about the task manager are valid."""

import json
import re
import shlex
from pathlib import Path

from agentevolver.cli.commands.task_manager import _parser
from agentevolver.config.parts import from_settings_file
from agentevolver.types import Task

PAGE = (Path(__file__).parents[2] / "docs" / "task_manager.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^python -m task_manager (.*?)(?:  +.*)?$", re.sub(r"(?<=\S)  +(?=--)", " ", PAGE), re.MULTILINE)


def test_the_first_example_is_a_valid_configuration(tmp_path):
    (tmp_path / "q.yaml").write_text(PAGE.split("```yaml\n")[1].split("```")[0])
    configuration = from_settings_file(tmp_path / "q.yaml")
    assert configuration.task_manager.max_seed_tasks == 40 and configuration.llm.base_url == "offline"


def test_every_command_that_is_shown_is_understood():
    assert COMMANDS
    for command in COMMANDS:
        assert _parser().parse_args(shlex.split(command)).settings == Path("questioning.yaml")


def test_the_task_that_is_shown_is_one():
    shown = PAGE.split("```json\n")[1].split("```")[0]
    assert Task.from_dict(json.loads(shown)["task"]).task_id == "note_add.k7.0#0"
