"""Measuring a proposal: the task that is played, what is made of the answers, and no number for a failure."""

from pathlib import Path

import pytest

from agentevolver.recipes.agent0.measure import measure, task_of
from agentevolver.recipes.agent0.play import PlayFailed
from agentevolver.recipes.agent0.tests.players import ScriptedPlayer, answered
from agentevolver.recipes.agent0.types import Play, ProposedTask
from agentevolver.types import Task

PROPOSAL = ProposedTask("r1.0007", "calc.left.3.f.00017", "left 3 f 4", "left 3 f 4", "9")


def in_turn(*answers: str | None) -> ScriptedPlayer:
    def script(checkpoint: Path, task: Task, number: int, name: str) -> Play:
        return answered(answers[number], calls=number)

    return ScriptedPlayer(script)


async def test_a_measurement_counts_the_label_and_the_vote_over_all_episodes() -> None:
    player = in_turn("9", "7", "7", None)
    measurement = await measure(player, "/base", "calc", PROPOSAL, 4, "r1.pool.3", "9")
    assert (measurement.label, measurement.p) == ("9", 0.25)
    assert (measurement.vote, measurement.p_vote) == ("7", 0.5)
    assert measurement.answers == ("9", "7", "7", None) and measurement.answered == 3
    assert measurement.calls == (0, 1, 2, 3) and measurement.mean_calls == 1.5
    checkpoint, task, k, name, validation = player.asked[0]
    assert (checkpoint, k, name, validation) == ("/base", 4, "r1.pool.3", False)
    assert task.env_type == "calc" and task.metadata["env_params"] == {
        "problem": {"question": "left 3 f 4", "answer": "9"}
    }


async def test_without_a_label_the_vote_is_it_and_the_proposers_answer_is_not_told() -> None:
    player = in_turn("7", "7", "9")
    measurement = await measure(player, "/base", "calc", PROPOSAL, 3, "x")
    assert (measurement.label, measurement.p) == ("7", 2 / 3)
    assert player.asked[0][1].metadata["env_params"] == {"problem": {"question": "left 3 f 4"}}


async def test_a_player_that_fails_is_an_error() -> None:
    player = in_turn("9")
    player.error = PlayFailed("gone")
    with pytest.raises(PlayFailed):
        await measure(player, "/base", "calc", PROPOSAL, 1, "x", "9")


async def test_what_was_refused_is_never_played() -> None:
    player = in_turn("9")
    for refused in (ProposedTask("p", "s", refused="malformed: no tags"), ProposedTask("p", "s")):
        with pytest.raises(ValueError, match="is no task"):
            await measure(player, "/base", "calc", refused, 1, "x", "9")
        with pytest.raises(ValueError, match="is no task"):
            task_of(refused, "calc")
    assert not player.asked
