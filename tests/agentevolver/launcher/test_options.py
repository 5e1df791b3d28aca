"""The command line: what is accepted, what is refused, and that asking for help costs nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentevolver.launcher.options import parse
from agentevolver.utils.errors import UsageError

ROOT = Path(__file__).parents[3]


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
        ([], "nothing to do"),
        (["--confg", "x.yaml"], "unknown option --confg"),
        (["--with-reme=yes", "--conf", "x.yaml"], "takes a name"),
        (["--view", "x", "--port", "70000"], "--port 70000 is no port"),
        (["--conf", "x", "--port", "8000"], "--host and --port are those of --view"),
        (["--stop", "--conf", "x"], "--stop stops runs and starts none"),
        (["--resume", "e", "--conf", "x"], "--resume takes the yaml that the experiment was started with"),
        (["--resume", "e", "--target", "m"], "leave --target away"),
        (["--with-logview"], "needs --conf; one that has ended: --view"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(arguments)
    assert "\n" not in str(caught.value)


def test_stop_takes_a_name_or_means_all() -> None:
    assert (
        parse(["--stop"]).stop == "" and parse(["--stop", "basic"]).stop == "basic" and parse(["--status"]).stop is None
    )
    assert not parse(["--stop"]).starts_something


def test_a_command_line_can_be_written_again() -> None:
    options = parse(["a=1", "--with-reme", "--conf", "x.yaml", "--env-module", "m=p:C", "--target", "t.t", "b=2"])
    assert parse(options.arguments()) == options and parse(["--conf", "x"]).arguments() == ["--conf", "x"]


def test_a_run_is_shown_without_starting_one() -> None:
    options = parse(["--view", "experiments/p/e", "--host", "0.0.0.0", "--port", "9000"])
    assert (options.view, options.host, options.port) == ((Path("experiments/p/e"),), "0.0.0.0", 9000)
    assert parse(["--view", "a", "b/c"]).view == (Path("a"), Path("b/c"))
    assert not options.starts_something
    assert parse(["--conf", "x", "--with-logview"]).services == ("logview",)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['launcher.py', '--help']; sys.path.insert(0, {str(ROOT)!r})\n"
        "try: runpy.run_path('launcher.py', run_name='__main__')\n"
        "except SystemExit as end: print('exit', end.code)\n"
        "print(sorted({'torch', 'ray', 'vllm', 'verl', 'omegaconf', 'hydra', 'httpx'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "--dry-run" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["exit 0", "[]"]
