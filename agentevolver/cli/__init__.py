"""The command `agentevolver VERB ...`. Exit codes: 0 success, 1 failure, 2 usage error (one line), 130 interrupted."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Sequence
    from pathlib import Path

# A verb imports its modules when it runs, so `--help` answers at once. Importing pathlib or typing here would already
# cost a tenth of the time allowed for `--help`.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROG = "agentevolver"
_HELP = ("-h", "--help")


class Verb:
    """Verb of the command line. `own_help`: `run` answers `--help` itself."""

    # No dataclass: `dataclasses` imports `inspect`, which `--help` would wait for.
    __slots__ = ("arguments", "own_help", "run", "sentence")

    def __init__(self, arguments: str, sentence: str, run: Callable[[list[str]], int], own_help: bool = False) -> None:
        self.arguments = arguments
        self.sentence = sentence
        self.run = run
        self.own_help = own_help


def root() -> Path:
    """Return the checkout: `.env` and the run records lie there, as for launcher.py."""
    from pathlib import Path

    return Path(_ROOT).resolve()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    from agentevolver.utils.terminal import guard_output

    guard_output()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _HELP:
        print(_overview())
        return 0
    if given in (["--version"], ["-V"]):
        print(version())
        return 0
    if not given:
        return _refuse(f"no verb given: one of {', '.join(VERBS)} (see {PROG} --help)")
    name, rest = given[0], given[1:]
    verb = VERBS.get(name)
    if verb is None:
        from agentevolver.utils.names import did_you_mean

        meant = did_you_mean(name, VERBS, f"one of {', '.join(VERBS)}", quote="")
        return _refuse(f"there is no verb {name!r}: {meant} (see {PROG} --help)")
    if not verb.own_help and any(item in _HELP for item in rest):
        print(f"usage: {PROG} {name} {verb.arguments}".rstrip() + f"\n\n{verb.sentence}")
        return 0
    try:
        return verb.run(rest)
    except KeyboardInterrupt:
        return 130


def version() -> str:
    """Return name, version and, in a git checkout, the commit."""
    import shutil
    import subprocess
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        number = installed(PROG)
    except PackageNotFoundError:
        number = "(not installed)"
    commit = ""
    if (root() / ".git").exists() and shutil.which("git"):
        asked = ["git", "-C", _ROOT, "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return f"{PROG} {number}" + (f" at {commit}" if commit else "")


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {name:{width}}  {verb.sentence}" for name, verb in VERBS.items()]
    last = f"{PROG} VERB --help lists the arguments of a verb, {PROG} --version prints the version."
    return "\n".join([f"usage: {PROG} VERB ...", "", *lines, "", last])


def _launch(verb: str, arguments: list[str]) -> int:
    from agentevolver.launcher.cli import main as launch

    return launch(arguments, root(), f"{PROG} {verb}")


def _run(rest: list[str]) -> int:
    if any(item in _HELP for item in rest):
        from agentevolver.launcher.options import help_text

        print(help_text(f"{PROG} run"))
        return 0
    return _launch("run", rest)


def _status(rest: list[str]) -> int:
    # `launcher.py --status --conf FILE` would start a run, so further arguments are refused.
    if rest:
        return _refuse(f"it takes no argument, {rest[0]!r} was given", "status")
    return _launch("status", ["--status"])


def _stop(rest: list[str]) -> int:
    # `agentevolver stop "$NAME"` with an unset NAME must not stop all runs.
    if "" in rest:
        return _refuse("the name is empty: give one, or none to stop all runs", "stop")
    return _launch("stop", ["--stop", *rest])


def _doctor(rest: list[str]) -> int:
    from agentevolver.launcher.doctor import main as doctor

    return doctor(rest, root())


COMMANDS = {"eval": "evaluate", "chat": "chat", "export": "export", "table": "table"}
"""Verb -> its module in `agentevolver.cli.commands`."""


def _command(verb: str) -> Callable[[list[str]], int]:
    def run(rest: list[str]) -> int:
        from importlib import import_module

        return int(import_module(f"agentevolver.cli.commands.{COMMANDS[verb]}").main(rest, root()))

    return run


def _completion(rest: list[str]) -> int:
    from agentevolver.cli.commands.verbs import carried_out

    def work() -> int:
        import shtab

        shell = _of_completion().parse_args(rest).shell
        print(shtab.complete(_all_verbs(), shell))
        return 0

    return carried_out("completion", work)


def _of_completion() -> ArgumentParser:
    from agentevolver.cli.commands.verbs import VerbParser

    made = VerbParser(
        "completion",
        "Prints a script for a shell. bash: source <(agentevolver completion bash) in ~/.bashrc; zsh: the same with "
        "zsh, in ~/.zshrc; fish: agentevolver completion fish | source",
    )
    made.add_argument("shell", choices=("bash", "zsh", "fish"))
    return made


def _all_verbs() -> ArgumentParser:
    """Return one parser with all verbs, for shell completion."""
    from argparse import ArgumentParser

    import shtab

    whole = ArgumentParser(prog=PROG)
    whole.add_argument("--version", action="store_true")
    verbs, made = whole.add_subparsers(), parsers()
    for name, verb in VERBS.items():
        # `add_help=False`, because the parent has -h already and argparse refuses a second one.
        own = verbs.add_parser(name, help=verb.sentence, parents=[made[name]] if name in made else [], add_help=False)
        if name not in made and verb.arguments:
            own.add_argument("name")
        # An argument without choices completes as a path, because experiments are folders. argparse (Python 3.11) has
        # no public list of actions.
        for action in own._actions:
            if not action.option_strings and action.choices is None:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return whole


def parsers() -> dict[str, ArgumentParser]:
    """Return the parsers of the verbs that have one. The other verbs are options of `run`."""
    from importlib import import_module

    from agentevolver.launcher.doctor import parser as of_doctor
    from agentevolver.launcher.options import parser as of_run
    from env_service.cli import parser_of

    made = {"run": of_run(), "doctor": of_doctor(), "new": parser_of("new"), "check": parser_of("check")}
    own = {name: import_module(f"agentevolver.cli.commands.{module}").parser() for name, module in COMMANDS.items()}
    return made | own | {"completion": _of_completion()}


def _env_service(verb: str) -> Callable[[list[str]], int]:
    def run(rest: list[str]) -> int:
        from env_service.cli import main as serve

        return serve([verb, *rest], prog=PROG)

    return run


def _refuse(message: str, verb: str = "") -> int:
    print(f"{PROG} {verb}".rstrip() + f": error: {message}", file=sys.stderr)
    return 2


VERBS = {
    "run": Verb("", "start a training run and the services it needs", _run, own_help=True),
    "resume": Verb(
        "NAME [options] [key=value ...]",
        "resume an experiment: its folder, project/experiment or experiment",
        lambda rest: _launch("resume", ["--resume", *rest]),
    ),
    "view": Verb(
        "NAME... [--host HOST] [--port PORT]",
        "show a run on a web page, or compare several, until Ctrl-C",
        lambda rest: _launch("view", ["--view", *rest]),
    ),
    "status": Verb("", "show the runs of this checkout and what they are doing", _status),
    "stop": Verb(
        "[NAME]",
        "stop the runs of this checkout in order, or that one",
        _stop,
    ),
    "eval": Verb("", "measure a policy or an API model on a split of an environment", _command("eval"), own_help=True),
    "chat": Verb(
        "", "watch a policy in its environment, step by step, or act in its place", _command("chat"), own_help=True
    ),
    "export": Verb("", "write a policy as a Hugging Face folder with a model card", _command("export"), own_help=True),
    "table": Verb("", "train conditions with several seeds, and write their table", _command("table"), own_help=True),
    "new": Verb("", "write a working skeleton of an environment", _env_service("new"), own_help=True),
    "check": Verb("", "check that an environment keeps the contract", _env_service("check"), own_help=True),
    "doctor": Verb("", "check this machine, a configuration and its language models", _doctor, own_help=True),
    "completion": Verb("", "print the completion of this command for a shell", _completion, own_help=True),
}
