"""Action formats: what ends an episode, what was refused, what kind of action it is."""

import pytest

from agentevolver.utils.errors import ConfigError
from env_service.protocol import EnvCrashed, EnvRequestError
from task_manager.actions import PlainFormat, format_of, read_state, register_format


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


@pytest.mark.parametrize("spec", ["nowhere.at_all:Format", "task_manager.actions:WorldState", "formats"])
def test_a_class_that_is_no_format_is_refused(spec):
    with pytest.raises(ConfigError, match=spec):
        format_of("moon", spec)
