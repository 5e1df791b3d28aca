"""The command `agentevolver VERB ...`: hands each verb to the part that does it.

Imports what a verb needs only when it runs, so that `--help` answers at once. Exit status: 0 done, 1 it failed, 2 what
was asked for is wrong (one line says what), 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout: `.env` and the records of its runs lie there, as for launcher.py."""
PROG = "agentevolver"
_HELP = ("-h", "--help")


@dataclass(frozen=True)
class Verb:
    """A verb: its arguments and a sentence for the help, and what carries it out."""

    arguments: str
    sentence: str
    run: Callable[[list[str]], int]
    own_help: bool = False
    """Whether `--help` is answered by what carries it out."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a verb; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _HELP:
        print(_overview())
        return 0
    if not given:
        return _refuse(f"no verb given: one of {', '.join(VERBS)} (see {PROG} --help)")
    name, rest = given[0], given[1:]
    verb = VERBS.get(name)
    if verb is None:
        near = get_close_matches(name, VERBS, 1)
        meant = f"did you mean {near[0]}?" if near else f"one of {', '.join(VERBS)}"
        return _refuse(f"there is no verb {name!r}: {meant} (see {PROG} --help)")
    if not verb.own_help and any(item in _HELP for item in rest):
        print(f"usage: {PROG} {name} {verb.arguments}".rstrip() + f"\n\n{verb.sentence}")
        return 0
    try:
        return verb.run(rest)
    except KeyboardInterrupt:
        return 130


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {name:{width}}  {verb.sentence}" for name, verb in VERBS.items()]
    return "\n".join([f"usage: {PROG} VERB ...", "", *lines, "", f"{PROG} VERB --help says what a verb takes."])


def _launch(arguments: list[str]) -> int:
    from agentevolver.launcher.cli import main as launch

    return launch(arguments, ROOT)


def _run(rest: list[str]) -> int:
    if any(item in _HELP for item in rest):
        from agentevolver.launcher.options import help_text

        print(help_text(f"{PROG} run"))
        return 0
    return _launch(rest)


def _status(rest: list[str]) -> int:
    # What is left over could start a run, as `launcher.py --status --conf FILE` does.
    return _refuse(f"status takes no argument, {rest[0]!r} was given") if rest else _launch(["--status"])


def _doctor(rest: list[str]) -> int:
    from agentevolver.launcher.doctor import main as doctor

    return doctor(rest, ROOT)


def _command(verb: str) -> Callable[[list[str]], int]:
    """Return what hands over to `agentevolver.commands.VERB`."""

    def run(rest: list[str]) -> int:
        from importlib import import_module

        return int(import_module(f"agentevolver.commands.{verb}").main(rest, ROOT))

    return run


def _env_service(verb: str) -> Callable[[list[str]], int]:
    def run(rest: list[str]) -> int:
        from env_service.cli import main as serve

        return serve([verb, *rest], prog=PROG)

    return run


def _refuse(message: str) -> int:
    print(f"{PROG}: error: {message}", file=sys.stderr)
    return 2


VERBS = {
    "run": Verb("", "start a training run and the services it needs", _run, own_help=True),
    "resume": Verb(
        "NAME [options] [key=value ...]",
        "go on with an experiment: its folder, project/experiment or experiment",
        lambda rest: _launch(["--resume", *rest]),
    ),
    "view": Verb(
        "FOLDER [--host HOST] [--port PORT]",
        "show a run on a web page, until Ctrl-C",
        lambda rest: _launch(["--view", *rest]),
    ),
    "status": Verb("", "show the runs of this checkout and what they are doing", _status),
    "stop": Verb(
        "[NAME]", "stop the runs of this checkout in order, or that one", lambda rest: _launch(["--stop", *rest])
    ),
    "export": Verb("", "write a policy as a Hugging Face folder with a model card", _command("export"), own_help=True),
    "new": Verb("", "write a working skeleton of an environment", _env_service("new"), own_help=True),
    "check": Verb("", "run the contract against an environment", _env_service("check"), own_help=True),
    "doctor": Verb("", "look at this machine, a configuration and its language models", _doctor, own_help=True),
}
