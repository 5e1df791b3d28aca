"""Action formats: what ends an episode, what was refused, what kind of action it is."""

import re

import pytest
from questioning_fakes import LocalDesk

from agentevolver.utils.errors import ConfigError
from env_service.protocol import EnvCrashed, EnvRequestError
from task_manager.actions import PlainFormat, format_of, read_state, register_format
from task_manager.verify import flaw_of
from task_manager.world import SeedWorld, execute


def result(text, terminated=False, **info):
    return {"state": [{"role": "user", "content": text}], "reward": 0.0, "is_terminated": terminated, "info": info}


def test_what_an_action_did_is_what_the_environment_says():
    fmt = format_of("moon")
    assert fmt.refusal(result("err login first", refused=True)) == "err login first"
    assert fmt.refusal(result("three results", refused="the second call failed")) == "the second call failed"
    assert fmt.refusal(result("ok", refused=False)) is None
    assert fmt.finished(result("bye", terminated=True, finished=True)) and not fmt.finished(
        result("late", terminated=True, finished=False)
    )
    assert fmt.tells(result("ok", refused=False)) and fmt.tells(result("ok", finished=False))
    silent = result("you are over the hill", terminated=True)
    assert not fmt.tells(silent) and fmt.refusal(silent) is None and fmt.finished(silent)


async def test_a_state_is_read_where_one_is_told():
    class Client:
        def __init__(self, told):
            self.told = told

        async def get_tools_info(self, instance_id, messages=None, params=None):
            if isinstance(self.told, Exception):
                raise self.told
            return self.told

    told = {"facts": {"note": {"n1": [1, 2]}}, "answer": "3", "finished": True, "exact": True}
    state = await read_state(Client(told), "i")
    assert (state.facts, state.answer, state.finished, state.exact, state.prose) == (
        {"note/n1": [1, 2]},
        "3",
        True,
        True,
        False,
    )
    for nothing in (None, [], {"tools": []}, {"facts": 3}, EnvRequestError("there is no `what`")):
        assert await read_state(Client(nothing), "i") is None
    with pytest.raises(EnvCrashed):
        await read_state(Client(EnvCrashed("gone")), "i")


class MoonFormat(PlainFormat):
    """The format of an environment of one's own."""


SPEC = f"{__name__}:MoonFormat"


def test_an_unknown_environment_is_read_by_the_contract_and_can_be_given_a_format(monkeypatch):
    assert type(format_of("moon")) is PlainFormat and format_of("moon").executable
    assert isinstance(format_of("moon", SPEC), MoonFormat)
    monkeypatch.setattr("task_manager.actions._registered", {})
    register_format("moon", MoonFormat)
    assert isinstance(format_of("moon"), MoonFormat)


@pytest.mark.parametrize(
    "spec", ["nowhere.at_all:Format", "task_manager.actions:WorldState", "task_manager.actions:Nothing", "formats"]
)
def test_a_class_that_is_no_format_is_refused(spec):
    with pytest.raises(ConfigError, match=spec):
        format_of("moon", spec)


@pytest.mark.parametrize(
    ("actions", "flaw"),
    [
        (["note.tag n2 fun", "done"], None),
        (["note.list work", "done soap"], None),
        (["note.tag n3 fun", "done"], r"action 0 \(note.tag n3 fun\) was refused: err no such id n3"),
        (["note.tag n2 fun"], "the episode did not end after its 1 actions"),
        (["done", "note.tag n2 fun"], "1 actions left over"),
        (["note.list work", "done"], "changes nothing and answers nothing"),
        (["note.tag n2 work", "done"], "changes nothing and answers nothing"),
    ],
)
async def test_an_executed_solution_is_found_good_or_told_why_not(actions, flaw):
    client, fmt = LocalDesk(), format_of("pocket")
    execution = await execute(client, SeedWorld("pocket", "note_add.k3.7"), fmt, actions)
    found = flaw_of(execution, fmt)
    assert found is None if flaw is None else re.search(flaw, str(found))
    assert not client.open
