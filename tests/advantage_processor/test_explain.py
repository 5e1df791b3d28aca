"""`python -m advantage_processor explain`: what a person sees of a trajectory."""

import json
import re

import pytest

from advantage_processor.__main__ import main
from agentevolver.types import StepCredit
from tests.advantage_processor.records import record


@pytest.fixture
def file(tmp_path):
    labelled = record(
        "g", 0, "GB", 1.0, actions=["note.find hat", "wait\x1b[2J"], observations=["n3 [bold]hat[/bold]", "x" * 900]
    )
    labelled.credit = StepCredit((0.75, -1.5), (2.25, -1.5))
    failed = {
        **record("g", 1, steps=1, score=0.0).to_dict(),
        "attribution": {"status": "failed", "kind": "reply", "reason": "LabelError: prose", "calls": 2},
    }
    path = tmp_path / "step_3.jsonl"
    path.write_text(
        "\n".join(
            json.dumps(item) for item in (labelled.to_dict(), failed, record("g", 2, steps=1, score=None).to_dict())
        )
        + "\n"
    )
    return path


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_trajectory_is_shown_with_labels_rewards_and_advantages(file, capsys):
    assert main(["explain", str(file), "--index", "0", "--color", "always"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b[" in shown
    text = plain(shown)
    for part in (
        "g_0",
        "t-g",
        "success 1",
        "delete the note hat",
        "labels: labelled",
        "step 0",
        "GOOD",
        "BAD",
        "+2.250",
        "+0.750",
        "-1.500",
    ):
        assert part in text
    assert "n3 [bold]hat[/bold]" in text  # an agent's text is no markup
    assert "because" in text and "more characters" in text


def test_what_an_agent_writes_cannot_command_the_terminal(file, capsys):
    main(["explain", str(file), "--index", "0", "--color", "never"])
    assert "\x1b" not in capsys.readouterr().out


def test_a_trajectory_without_labels_says_why(file, capsys):
    assert main(["explain", str(file), "--index", "1"]) == 0
    shown = capsys.readouterr().out
    assert "labels: failed (LabelError: prose), 2 calls" in shown and "failure 0" in shown and "advantage" not in shown


def test_without_an_index_every_trajectory_has_a_line(file, capsys):
    assert main(["explain", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "GB" in lines[1] and "+0.750" in lines[1]
    assert "failed rollout" in lines[3]


@pytest.mark.parametrize("arguments", [["--index", "3"], ["--index", "-1"]])
def test_an_index_that_is_not_there_is_refused(file, capsys, arguments):
    assert main(["explain", str(file), *arguments]) == 2
    assert "holds 3 trajectories, 0 to 2" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(tmp_path, capsys):
    assert main(["explain", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
