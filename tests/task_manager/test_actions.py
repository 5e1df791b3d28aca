"""Which action format an environment has."""

import pytest

from agentevolver.utils.errors import ConfigError
from task_manager.actions import PlainFormat, format_of


class MoonFormat(PlainFormat):
    """The format of an environment of one's own."""


SPEC = f"{__name__}:MoonFormat"


def test_an_unknown_environment_is_read_by_the_contract_and_can_be_given_a_format():
    assert type(format_of("moon")) is PlainFormat and format_of("moon").executable
    assert isinstance(format_of("moon", SPEC), MoonFormat)


@pytest.mark.parametrize("spec", ["nowhere.at_all:Format", "task_manager.actions:WorldState", "formats"])
def test_a_class_that_is_no_format_is_refused(spec):
    with pytest.raises(ConfigError, match=spec):
        format_of("moon", spec)
