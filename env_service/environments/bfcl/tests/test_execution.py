"""BFCL's own reference calls through execution and state checks: what holds passes, what does not is found."""

import json

import pytest

from env_service.contract import created_with
from task_manager.actions import format_of
from task_manager.verify import flaw_of
from task_manager.world import SeedWorld, execute
from tests.task_manager.questioning_fakes import LocalPocket

FMT = format_of("bfcl")


class LocalBfcl(LocalPocket):
    """The same client over BFCL's instances."""

    async def create_instance(self, env_type, task_id, instance_id=None, params=None):
        from env_service.environments.bfcl.env import BfclEnv

        env = self.open[instance_id] = BfclEnv(task_id, instance_id, created_with(BfclEnv, params))
        return env.get_init_state()


def reference_actions(task_id):
    """The first turn's calls, one action each."""
    import inspect

    from env_service.environments.bfcl.calls import parse_reference
    from env_service.environments.bfcl.package import load_package

    package = load_package()
    task = package.tasks[task_id]
    actions = []
    for call in map(parse_reference, task.truth[0]):
        method = next(
            m for name in task.involved_classes if (m := getattr(package.classes[name], call.name, None)) is not None
        )
        bound = inspect.signature(method).bind(None, *call.positional, **call.arguments).arguments
        arguments = {key: value for key, value in bound.items() if key != "self"}
        actions.append(f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': arguments})}\n</tool_call>")
    return actions


@pytest.mark.parametrize("number", [0, 3, 11, 25, 60, 100, 150])
async def test_a_reference_turn_is_carried_out_and_its_check_tells_it_from_doing_nothing(number):
    world = SeedWorld("bfcl", f"multi_turn_base_{number}")
    client = LocalBfcl()
    solution = FMT.complete(reference_actions(world.seed_task_id), None)
    done = await execute(client, world, FMT, solution)
    assert flaw_of(done, FMT) in (None, "it changes nothing and answers nothing")
    assert done.finished and not client.open
    if done.changes:
        assert all(holds for _, holds in done.check.judge(done.after))
        idle = await execute(client, world, FMT, ["I did it."])
        assert not all(holds for _, holds in done.check.judge(idle.after))


async def test_a_call_that_fails_is_found():
    world = SeedWorld("bfcl", "multi_turn_base_0")
    for name, arguments in (("cd", {"folder": "nowhere"}), ("no_such_function", {}), ("cd", {"wrong": 1})):
        action = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        done = await execute(LocalBfcl(), world, FMT, FMT.complete([action], None))
        assert "was refused" in flaw_of(done, FMT)
