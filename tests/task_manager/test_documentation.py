"""The page on the task manager says what there is: its example is valid, its commands are understood, its names
exist."""

import json
import re
import shlex
from pathlib import Path

import yaml

from agentevolver.commands.task_manager import _COMMANDS, _parser
from agentevolver.config.parts import from_settings_file
from agentevolver.types import Task
from task_manager.graders.registry import GRADERS
from task_manager.profile import shipped_profile
from task_manager.report import STAGES
from task_manager.settings import TaskManagerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "task_manager.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^python -m task_manager (.*?)(?:  +.*)?$", re.sub(r"(?<=\S)  +(?=--)", " ", PAGE), re.MULTILINE)


def section(title):
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_column(text):
    return [name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)]


def test_the_first_example_is_a_valid_configuration(tmp_path):
    (tmp_path / "q.yaml").write_text(PAGE.split("```yaml\n")[1].split("```")[0])
    configuration = from_settings_file(tmp_path / "q.yaml")
    assert configuration.task_manager.max_seed_tasks == 40 and configuration.llm.base_url == "offline"


def test_every_command_is_shown_and_understood():
    assert {command.split()[0] for command in COMMANDS} == set(_COMMANDS)
    for command in COMMANDS:
        assert _parser().parse_args(shlex.split(command)).settings == Path("questioning.yaml")


def test_every_setting_grader_and_stage_is_named():
    assert set(first_column(section("Settings"))) == set(TaskManagerSettings.model_fields)
    assert set(first_column(section("Graders"))) == set(GRADERS)
    stages = re.findall(r"^\| ([a-z, ]+) \|", section("The funnel"), re.MULTILINE)
    assert tuple(", ".join(stages[1:]).split(", ")) == STAGES


def test_the_profiles_that_are_named_are_shipped():
    (named,) = re.findall(r"that has none; (.*?) have one", PAGE.replace("\n", " "))
    names = re.findall(r"\w+", named.replace(" and ", ", "))
    assert len(names) >= 7 and all(shipped_profile(name).entities for name in names)


def test_the_defaults_that_are_told_are_the_defaults():
    settings = TaskManagerSettings()
    rows = re.findall(r"^\| `(\w+)`.*? \| (.*?) \|", section("Settings"), re.MULTILINE)
    told = [
        (name, key, yaml.safe_load(value))
        for name, text in rows
        for key, value in re.findall(r"`(\w+): ([\w.]+)`", text)
    ]
    assert len(told) >= 3
    for name, key, value in told:
        assert getattr(getattr(settings, name), key) == value, f"{name}.{key}"


def test_the_task_that_is_shown_is_one():
    shown = PAGE.split("```json\n")[1].split("```")[0]
    assert Task.from_dict(json.loads(shown)["task"]).task_id == "note_add.k7.0#0"
