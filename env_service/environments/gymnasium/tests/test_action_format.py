"""Action formats: what ends an episode, how a native call is written, what kind of action it is."""

import pytest

from env_service.environments.gymnasium.action_format import GymnasiumFormat


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("action: down", None),
        ("I am there.\naction: done 4", "4"),
    ],
)
def test_the_action_that_ends_an_episode_is_known(action, answer):
    assert GymnasiumFormat("gymnasium").answer_of(action) == answer


@pytest.mark.parametrize(
    ("name", "arguments", "action"),
    [
        ("act", {"action": "down"}, "action: down"),
        ("pick up", {}, "action: pick up"),
        ("act", {"x": 1, "y": 2}, None),
    ],
)
def test_a_native_tool_call_is_written_as_the_environment_reads_it(name, arguments, action):
    assert GymnasiumFormat("gymnasium").action_of_call(name, arguments) == action
