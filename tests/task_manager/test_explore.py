"""Explorations: two phases, what the explorer sees in each, what it is told of others' tries, and how they fail."""

import pytest
from questioning_fakes import LocalDesk, Tutor

from agentevolver.llm.errors import LLMReplyError, LLMUnavailable
from agentevolver.llm.prompts import read_steps
from env_service.client_errors import EnvCrashed
from task_manager.execution import World
from task_manager.explore import Exploration, Explorer, replayed
from task_manager.formats import format_of
from task_manager.profile import shipped_profile
from task_manager.settings import StrategySettings
from task_manager.strategies import CuriousStrategy, RandomStrategy, make_strategy

WORLD = World("pocket", "note_add.k3.7")
ARGS = StrategySettings(breadth_steps=2, depth_steps=4, depth_window=2)


def explorer(llm, client=None, strategy=None, args=ARGS):
    return Explorer(client or LocalDesk(), llm, format_of("pocket"), shipped_profile("pocket"), strategy or RandomStrategy(), args)


async def test_breadth_sees_everything_and_depth_the_last_steps_under_their_own_numbers():
    tutor = Tutor()
    found = await explorer(tutor).explore(WORLD, 0)
    assert [step.phase for step in found.steps] == ["breadth"] * 2 + ["depth"] * 4
    seen = [[step.index for step in read_steps(sections["transcript"])] for sections in tutor.asked("explorer/act")]
    assert seen == [[], [0], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert [sections["steps_left"] for sections in tutor.asked("explorer/act")] == ["6", "5", "4", "3", "2", "1"]


async def test_the_phases_have_temperatures_of_their_own_and_no_two_calls_the_same_seed():
    tutor = Tutor()
    args = ARGS.model_copy(update={"exploration_llm_temperature": 1.3, "depth_llm_temperature": 0.2})
    for number in range(2):
        await explorer(tutor, args=args).explore(WORLD, number)
    sampling = [sampling for _, _, sampling in tutor.prompts]
    assert [s["temperature"] for s in sampling[:6]] == [1.3, 1.3, 0.2, 0.2, 0.2, 0.2]
    assert len({s["seed"] for s in sampling}) == 12


async def test_an_exploration_survives_the_journal_and_its_instance_is_released():
    client = LocalDesk()
    found = await explorer(Tutor(), client).explore(WORLD, 3)
    assert Exploration.from_dict(found.to_dict()) == found
    assert not client.open and client.counts["/create"] == 1
    assert "You are at site k3" in found.opening and "You have no task" not in found.opening


async def test_the_environment_may_end_it_early():
    tutor = Tutor(says={"explorer/act": ['{"action": "note.list home"}', '{"action": "done"}']})
    found = await explorer(tutor).explore(WORLD, 0)
    assert found.ended and [step.action for step in found.steps] == ["note.list home", "done"]


async def test_nonsense_ends_it_with_what_there_is_and_nonsense_alone_fails():
    half = Tutor(says={"explorer/act": ['{"action": "note.list home"}', "I would rather not."]})
    assert len((await explorer(half).explore(WORLD, 0)).steps) == 1
    client = LocalDesk()
    with pytest.raises(LLMReplyError):
        await explorer(Tutor(says={"explorer/act": [""]}), client).explore(WORLD, 0)
    assert not client.open


@pytest.mark.parametrize("error", [LLMUnavailable("down"), EnvCrashed("broke")])
async def test_failures_go_to_the_caller_and_the_instance_is_released(error):
    client = LocalDesk()
    tutor = Tutor(says={"explorer/act": [error]} if isinstance(error, LLMUnavailable) else {})
    if isinstance(error, EnvCrashed):
        client.failures = [("/step", error)]
    with pytest.raises(type(error)):
        await explorer(tutor, client).explore(WORLD, 0)
    assert not client.open


async def test_the_curious_explorer_is_told_of_every_try_and_does_something_else():
    strategy = CuriousStrategy(format_of("pocket"), 40)
    first = await explorer(Tutor(), strategy=strategy, args=StrategySettings(breadth_steps=3, depth_steps=0)).explore(WORLD, 0)
    tutor = Tutor()
    second = await explorer(tutor, strategy=strategy, args=StrategySettings(breadth_steps=3, depth_steps=0)).explore(WORLD, 1)
    assert not {step.action for step in first.steps} & {step.action for step in second.steps}
    random = [await explorer(Tutor()).explore(WORLD, number) for number in range(2)]
    assert [s.action for s in random[0].steps] == [s.action for s in random[1].steps]


async def test_the_memory_is_the_same_after_a_restart():
    strategy, again = (CuriousStrategy(format_of("pocket"), 40) for _ in range(2))
    found = await explorer(Tutor(), strategy=strategy).explore(WORLD, 0)
    replayed(again, Exploration.from_dict(found.to_dict()))
    assert again.tried(WORLD) == strategy.tried(WORLD) != []


def test_overdone_kinds_come_first_refused_actions_count_only_where_they_were_tried_and_the_memory_is_bounded():
    strategy = CuriousStrategy(format_of("pocket"), 6)
    other = World("pocket", "pay.k3.1")
    for number in range(9):
        strategy.record(other, f"note.find w{number}", refused=False)
    for tool in ("cal.list mon", "shop.orders"):
        strategy.record(other, tool, refused=False)
    strategy.record(WORLD, "bank.bal", refused=True)
    assert strategy.tried(WORLD) == ["note.find (9 times)", "bank.bal"]
    assert len(strategy.tried(other)) == 6


def test_there_are_two_strategies():
    with pytest.raises(ValueError, match="random, curious"):
        make_strategy("deduplication", format_of("pocket"), ARGS)


@pytest.mark.parametrize(
    ("env_type", "args", "steps"),
    [
        ("appworld", {}, (3, 17)),
        ("bfcl", {}, (3, 27)),
        ("bfcl", {"max_explore_step": 10}, (3, 7)),
        ("bfcl", {"max_explore_step": 2}, (2, 0)),
        ("moon", {"depth_steps": 0}, (3, 0)),
    ],
)
def test_steps_follow_the_environment_unless_they_are_given(env_type, args, steps):
    assert StrategySettings(**args).steps(env_type) == steps
