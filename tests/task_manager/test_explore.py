"""Explorations: two phases, what the explorer sees in each, what it is told of others' tries, and how they fail."""

import logging

import pytest
from questioning_fakes import LocalDesk, Tutor

from agentevolver.llm.errors import (
    LLMContextOverflow,
    LLMFiltered,
    LLMRefused,
    LLMReplyError,
    LLMUnavailable,
)
from agentevolver.llm.prompts import read_steps
from task_manager.actions import format_of
from task_manager.explore import (
    ExploredStep,
    Explorer,
    RandomStrategy,
    StepLog,
)
from task_manager.profile import shipped_profile
from task_manager.settings import StrategySettings
from task_manager.world import SeedWorld

WORLD = SeedWorld("pocket", "note_add.k3.7")
ARGS = StrategySettings(breadth_steps=2, depth_steps=4)


def explorer(llm, client=None, strategy=None, args=ARGS, **keys):
    return Explorer(
        client or LocalDesk(),
        llm,
        format_of("pocket"),
        shipped_profile("pocket"),
        strategy or RandomStrategy(),
        args,
        **keys,
    )


async def test_breadth_sees_everything_and_depth_the_last_steps_under_their_own_numbers():
    tutor = Tutor()
    found = await explorer(tutor).explore(WORLD, 0)
    assert [step.phase for step in found.steps] == ["breadth"] * 2 + ["depth"] * 4
    seen = [[step.index for step in read_steps(sections["transcript"])] for sections in tutor.asked("explorer/act")]
    assert seen == [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4]]
    assert [sections["steps_left"] for sections in tutor.asked("explorer/act")] == ["6", "5", "4", "3", "2", "1"]


async def test_the_environment_may_end_it_early_and_the_explorer_only_if_it_insists():
    found = await explorer(
        Tutor(says={"explorer/act": ["note.list home", "done", "shop.orders", "done", "done"]})
    ).explore(WORLD, 0)
    assert found.ended and [step.action for step in found.steps] == ["note.list home", "shop.orders", "done"]


async def test_nonsense_costs_the_rest_of_the_exploration_and_nonsense_alone_fails():
    half = await explorer(Tutor(says={"explorer/act": ["note.list home", "", '{"thought": "hm", "act']})).explore(
        WORLD, 0
    )
    assert [step.action for step in half.steps] == ["note.list home"] and half.stopped == "reply"
    client = LocalDesk()
    with pytest.raises(LLMReplyError, match="the reply is empty"):
        await explorer(Tutor(says={"explorer/act": ["", ""]}), client).explore(WORLD, 0)
    assert not client.open


@pytest.mark.parametrize(
    ("errors", "stopped"),
    [
        ([LLMRefused("no such model")], "refused"),
        ([LLMFiltered("a word"), LLMFiltered("a word")], "filtered"),
        ([LLMContextOverflow("too long", 10)] * 5, "overflow"),
    ],
)
async def test_a_refused_call_ends_an_exploration_which_keeps_its_steps_and_a_first_one_fails_it(errors, stopped):
    client = LocalDesk()
    found = await explorer(Tutor(says={"explorer/act": ["note.list home", "shop.orders", *errors]}), client).explore(
        WORLD, 0
    )
    assert [step.action for step in found.steps] == ["note.list home", "shop.orders"] and found.stopped == stopped
    with pytest.raises(LLMRefused):
        await explorer(Tutor(says={"explorer/act": list(errors)}), client).explore(WORLD, 0)
    assert not client.open


async def test_an_exploration_goes_on_behind_its_last_step(tmp_path):
    whole = await explorer(Tutor()).explore(WORLD, 0)
    path = tmp_path / "x" / "flight.jsonl"
    with pytest.raises(LLMUnavailable):
        says = [step.action for step in whole.steps[:4]]
        await explorer(Tutor(says={"explorer/act": [*says, LLMUnavailable("away")]})).explore(WORLD, 0, StepLog(path))
    with path.open("a") as file:
        file.write('{"action": "note.li')
    tutor, client = Tutor(), LocalDesk()
    found = await explorer(tutor, client).explore(WORLD, 0, StepLog(path))
    assert found.steps == whole.steps and len(tutor.prompts) == 2 and not client.open
    assert StepLog(path).steps == whole.steps and client.counts["/create"] == 1


async def test_where_the_world_answers_otherwise_the_exploration_begins_anew_and_says_so(tmp_path, caplog):
    path = tmp_path / "flight.jsonl"
    log = StepLog(path)
    log.begin("You are at site k3")
    log.add(ExploredStep("note.list home", "a note that was there before", "breadth"))
    tutor, client = Tutor(), LocalDesk()
    with caplog.at_level(logging.WARNING):
        found = await explorer(tutor, client).explore(WORLD, 0, StepLog(path))
    assert "restarts: replaying its 1 steps gave other observations" in caplog.text
    assert found.steps == (await explorer(Tutor()).explore(WORLD, 0)).steps == StepLog(path).steps
    assert client.counts["/create"] == 2 and not client.open
