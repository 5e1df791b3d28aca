"""The command line: what is accepted, and what is refused."""

import pytest

from agentevolver.launcher.options import parse
from agentevolver.utils.errors import UsageError


def test_overrides_and_services_may_stand_anywhere() -> None:
    options = parse(
        ["a.b=1", "--with-reme", "--conf", "x.yaml", "c=d=e", "--dry-run", "--with-pocket", "f=", "--with-reme"]
    )
    assert options.overrides == ("a.b=1", "c=d=e", "f=")
    assert options.services == ("reme", "pocket")
    assert options.dry_run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--confg", "x.yaml"], "unknown option --confg"),
        (["--with-reme=yes", "--conf", "x.yaml"], "takes a name"),
        (["--conf", "x", "--port", "8000"], "--host and --port need --view"),
        (["--stop", "--conf", "x"], "--stop stops runs and starts none"),
        (["--resume", "e", "--conf", "x"], "--resume takes the yaml that the experiment was started with"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(arguments)
    assert "\n" not in str(caught.value)
