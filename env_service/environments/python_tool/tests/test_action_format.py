"""Action formats: what ends an episode, how a native call is written, what kind of action it is."""

import pytest

from env_service.environments.python_tool.action_format import PythonFormat


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("```python\n1\n```", None),
        ("so it is \\boxed{3/4}", "3/4"),
    ],
)
def test_the_action_that_ends_an_episode_is_known(action, answer):
    assert PythonFormat("python").answer_of(action) == answer
