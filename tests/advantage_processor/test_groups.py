import asyncio

from advantage_processor.groups import GroupOutcomes


async def test_groups_of_one_step_do_not_disturb_each_other_and_who_waits_is_answered_after_the_next_step_began():
    groups = GroupOutcomes(2)
    first, other = groups.report("a", 0, 1.0, step=1), groups.report("b", 0, 1.0, step=1)
    waiting = asyncio.create_task(groups.advantage(first, 0, 5.0))
    await asyncio.sleep(0)
    assert groups.report("a", 1, 0.0, step=1) is first
    assert round(await waiting, 3) == 0.707
    groups.report("c", 0, 1.0, step=2)
    assert await groups.advantage(other, 0, 0.01) is None


async def test_where_rollouts_go_on_over_updates_a_group_is_remembered_for_as_long_as_it_may_take():
    groups = GroupOutcomes(2, steps_kept=3)
    slow = groups.report("slow", 0, 1.0, step=1)
    for step in (2, 3):
        groups.report(f"never-{step}", 0, 1.0, step=step)
    assert groups.report("slow", 1, 0.0, step=1) is slow and slow.complete.is_set()
    lost = groups.report("lost", 0, 1.0, step=1)
    groups.report("new", 0, 1.0, step=4)
    assert groups.report("lost", 1, 0.0, step=1) is not lost
