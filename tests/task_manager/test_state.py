"""Machine checks: passed by whatever leaves the world as the reference does, and by nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from questioning_fakes import LocalPocket

from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.tests import replays
from task_manager.actions import format_of
from task_manager.state import StateCheck, WorldState, flatten
from task_manager.world import SeedWorld, execute

VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.text(max_size=2),
    lambda v: st.dictionaries(st.text(max_size=3), v, max_size=3),
    max_leaves=8,
)
FACTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), max_size=5)


@given(
    st.dictionaries(st.text(max_size=3), VALUES, max_size=3), st.dictionaries(st.text(max_size=3), VALUES, max_size=3)
)
def test_different_trees_have_different_facts(one, other):
    assert (flatten(one) == flatten(other)) == (one == other)


@given(FACTS, FACTS, FACTS)
def test_a_check_passes_for_the_goal_alone(start, goal, now):
    check = StateCheck.from_dict(StateCheck.of(WorldState(start), WorldState(goal)).to_dict())
    assert all(holds for _, holds in check.judge(WorldState(goal)))
    assert all(holds for _, holds in check.judge(WorldState(now))) == (now == goal)
    assert check.decides == (start != goal)


async def checked(task_id, actions):
    """What the check made of the task's own reference says of other actions, and what the environment's own grading
    says."""
    client, fmt = LocalPocket(), format_of("pocket")
    world = SeedWorld("pocket", task_id)
    check = (await execute(client, world, fmt, replays.reference(task_id))).check
    done = await execute(client, world, fmt, actions)
    return all(holds for _, holds in check.judge(done.after)), replays.replay(task_id, actions).sparse == 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("task_id", PocketEnv.get_query_list("dev", {"n": 48}))
async def test_the_check_agrees_with_the_worlds_own_grading(task_id):
    reference = replays.reference(task_id)
    for actions in (
        reference,
        ["done"],
        ["done 7"],
        ["mail.send ann tea", *reference],
        reference[:-1],
        [*reference[:-1], "done wrong"],
    ):
        ours, theirs = await checked(task_id, actions)
        if actions == [*reference[:-1], "done wrong"] and reference[-1] == "done":
            continue  # an answer that nobody asked for: both may shrug, the world does
        assert ours == theirs, actions
