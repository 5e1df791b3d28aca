"""The page says what is so: its settings are the defaults, and its commands exist."""

import re
from pathlib import Path

import pytest
import yaml

from agentevolver.commands.experience_manager import main
from experience_manager.settings import ExperienceSettings

PAGE = (Path(__file__).parents[2] / "docs" / "experience_manager.md").read_text()


def below(given, whole):
    """Whether every value that is given stands in the whole."""
    return all(
        below(value, whole[key]) if isinstance(value, dict) else whole[key] == value for key, value in given.items()
    )


def test_the_settings_on_the_page_are_the_defaults():
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    given = yaml.safe_load(block)["exp_manager"]
    assert below(given, ExperienceSettings().model_dump(mode="json"))
    ExperienceSettings.model_validate(given)


def test_every_command_of_the_page_exists(capsys):
    rows = re.findall(r"^\| (`[a-z].*?) \| ", PAGE.split("## Command line")[1].split("## Service")[0], re.MULTILINE)
    commands = {name for row in rows for name in re.findall(r"`([a-z]+)\b", row)}
    for command in commands | set(re.findall(r"python -m experience_manager (\w+)", PAGE)):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
