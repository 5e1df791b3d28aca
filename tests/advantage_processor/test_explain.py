import json
import re

import pytest

from advantage_processor.__main__ import main
from agentevolver.types import CreditParts, StepCredit
from tests.advantage_processor.records import record


@pytest.fixture
def file(tmp_path):
    labelled = record(
        "g", 0, "GB", 1.0, actions=["note.find hat", "wait\x1b[2J"], observations=["n3 [bold]hat[/bold]", "x" * 900]
    )
    labelled.credit = StepCredit((0.75, -1.5), (2.25, -1.5), CreditParts((0.0, -1.0), (2.25, -0.5), (-1.5, 0.0)))
    path = tmp_path / "step_3.jsonl"
    path.write_text(json.dumps(labelled.to_dict()) + "\n")
    return path


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_trajectory_is_shown_with_labels_rewards_and_advantages(file, capsys):
    assert main(["explain", str(file), "--index", "0", "--color", "always"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b[" in shown
    text = plain(shown)
    assert "GOOD" in text and "+0.000 outcome +2.250 label -1.500 what comes after = +0.750" in text
    assert "n3 [bold]hat[/bold]" in text and "\x1b" not in text  # an agent's text is no markup and no command
