"""Command line of the environment service."""

from __future__ import annotations

# Only light imports here: each command imports what it needs when it runs, so that `--help` answers at once.
import argparse
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from env_service.arguments import add_env_modules


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m env_service") -> int:
    """Run a command and return the exit status. `prog` is the command's name in help and errors."""
    from agentevolver.utils.terminal import guard_output

    guard_output()
    options, rest = _parser(prog).parse_known_args(arguments)
    # Parameters of instances may stand anywhere among the options of `demonstrate`.
    if options.command == "demonstrate" and not any(word.startswith("-") or "=" not in word for word in rest):
        options.params += rest
    elif rest:
        parser_of(options.command, prog).error(f"unrecognized arguments: {' '.join(rest)}")
    options.prog = prog
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return int(options.run(options))


def _parser(prog: str = "python -m env_service") -> argparse.ArgumentParser:
    parser = _Parser(prog=prog, description="Gym-style environments for LLM agents behind HTTP.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    with_defaults = argparse.ArgumentDefaultsHelpFormatter
    _add_serve(commands.add_parser("serve", help="serve environments over HTTP", formatter_class=with_defaults))
    listing = commands.add_parser("list", help="list the environments that can be served")
    listing.set_defaults(run=_list)
    add_env_modules(listing)
    _add_new(commands.add_parser("new", help="write a working skeleton of a new environment"))
    _add_check(
        commands.add_parser("check", help="run the contract against an environment", formatter_class=with_defaults)
    )
    _add_demonstrate(
        commands.add_parser(
            "demonstrate", help="write conversations that solve an environment's tasks", formatter_class=with_defaults
        )
    )
    return parser


def parser_of(command: str, prog: str = "python -m env_service") -> argparse.ArgumentParser:
    commands = next(item for item in _parser(prog)._actions if isinstance(item, argparse._SubParsersAction))
    chosen: argparse.ArgumentParser = commands.choices[command]
    return chosen


def _add_new(parser: argparse.ArgumentParser) -> None:
    from env_service.registry import environment_folders

    parser.set_defaults(run=_new, skeleton=None)
    parser.add_argument("name", help="name of the environment and its package")
    parser.add_argument("--dir", default=".", help="folder to write the package into")
    for folder in environment_folders():
        for option, (function, about) in folder.skeletons.items():
            parser.add_argument(
                f"--{option}", metavar="FILE", dest="skeleton", type=partial(_described, function), help=about
            )


def _described(function: str, file: str) -> tuple[str, str]:
    return function, file


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_check)
    parser.add_argument("name", help="name of the environment")
    add_env_modules(parser)
    parser.add_argument("--url", help="check it through this running service instead of in this process")
    parser.add_argument("--split", default="train", help="split whose first task is used")
    parser.add_argument("--action", default="hello", help="a text that the environment takes as a step")


def _add_demonstrate(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_demonstrate)
    parser.fromfile_prefix_chars = "@"
    add = parser.add_argument
    add("name", help="name of the environment")
    add("params", nargs="*", metavar="KEY=VALUE", help="parameters of the instances; a value is JSON, or a text")
    add_env_modules(parser)
    add("--out", required=True, metavar="FILE", help="JSONL file of conversations, as cold_start.files reads them")
    add("--split", default="train", help="split whose tasks are demonstrated")
    add("--filter", action="append", default=[], metavar="KEY=VALUE", help="parameter of the list of tasks")
    add("-n", type=_positive, default=400, help="conversations")
    add("--seed", type=int, default=0, help="what draws tasks, mistakes and hints")
    add("--mistakes", type=_share, default=0.15, help="probability of a mistake before an action")
    add("--hints", type=_share, default=0.5, help="share of conversations with the environment's hint before the task")
    add("--template", help="words around a hint, {} is the hint; default: those of exp_manager.experience_template")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_serve)
    add = parser.add_argument
    add(
        "--env", action="append", required=True, metavar="NAME", help="environment to serve; may be given several times"
    )
    add_env_modules(parser)
    add(
        "--host", "--portal", default="127.0.0.1", help="address to bind; anything but loopback needs ENV_SERVICE_TOKEN"
    )
    add("--port", type=int, default=8080, help="port to bind; 0 takes a free one")
    add("--ray-address", metavar="ADDRESS", help="Ray cluster to join; without it a private one is started")
    add(
        "--max-instances",
        type=_positive,
        metavar="N",
        help="open instances per environment (4096 shared, 256 isolated)",
    )
    add(
        "--shared-hosts",
        type=_positive,
        default=2,
        metavar="N",
        help="processes for the instances of a shared environment",
    )
    add("--threads", type=_positive, default=32, metavar="N", help="calls that one shared host runs at a time")
    add("--warm", type=_positive, default=4, metavar="N", help="isolated processes kept ready")
    add(
        "--memory-mb",
        type=_not_negative,
        metavar="MB",
        help="memory an isolated process may add; 0: no limit; else the class decides",
    )
    add(
        "--shared-memory-mb",
        type=_not_negative,
        default=4096,
        metavar="MB",
        help="memory a shared host may add; 0: no limit",
    )
    add("--idle-s", type=float, default=3600.0, metavar="S", help="release an instance that was not used for so long")
    add("--max-body-bytes", type=_positive, default=2 * 1024 * 1024, metavar="N", help="largest request body")
    add(
        "--max-reply-bytes",
        type=_positive,
        default=16 * 1024 * 1024,
        metavar="N",
        help="largest reply of an environment",
    )
    add("--path", action="append", default=[], metavar="FOLDER", dest="paths", help="files that parameters may name")
    add("--pass-env", action="append", default=[], metavar="NAME", help="let environments see this secret variable")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text} must be from 0 to 1")
    return number


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} must not be negative")
    return number


def _serve(options: argparse.Namespace) -> int:
    from env_service.registry import RegistryError, resolve

    try:
        environments = resolve(options.env, options.env_modules)
    except RegistryError as error:
        return _fail(options, str(error))
    from pathlib import Path

    from agentevolver.utils.processes import is_plain, plain_python
    from agentevolver.utils.secrets import SECRETS, forget
    from env_service.hosting.processes import new_folder, secret_variables
    from env_service.http.app import StartError, serve, take_token
    from env_service.settings import ServiceSettings

    if options.ray_address is None and not is_plain(sys.executable):
        # The private Ray is started by this process, whose path it pastes into command lines.
        (link := Path(new_folder(0)) / "python").symlink_to(sys.prefix)
        os.execv(python := plain_python(link), [python, *sys.orig_argv[1:]])
    chosen = {
        name: value
        for name, value in vars(options).items()
        if name not in ("run", "env", "env_modules", "pass_env", "prog", "command")
    }
    try:
        token = take_token(options.host)
        # A private Ray inherits this environment. `SECRETS` is only a path, from which hosts read their secrets.
        hidden = secret_variables(os.environ, (*options.pass_env, SECRETS))
        forget(name for name in hidden if not name.startswith("RAY_"))
        serve(ServiceSettings(environments, token=token, pass_env=tuple(options.pass_env), **chosen))
    except StartError as error:
        return _fail(options, str(error))
    return 0


def _list(options: argparse.Namespace) -> int:
    from env_service.registry import RegistryError, known_environments

    try:
        known = known_environments(options.env_modules)
    except RegistryError as error:
        return _fail(options, str(error))
    width = max(len(name) for name in known)
    for name in sorted(known):
        print(f"{name:{width}}  {known[name]}")
    return 0


def _new(options: argparse.Namespace) -> int:
    import importlib
    from pathlib import Path

    from env_service.skeleton import SkeletonError, write_skeleton

    try:
        if options.skeleton:
            function, file = options.skeleton
            module, _, attribute = function.partition(":")
            write = getattr(importlib.import_module(module), attribute)
            written = write(options.name, Path(file), Path(options.dir))
        else:
            written = write_skeleton(options.name, Path(options.dir))
    except SkeletonError as error:
        return _fail(options, str(error), 2)
    except (OSError, ImportError) as error:
        return _fail(options, str(error))
    for path in written:
        print(f"wrote {path}")
    env_class = "".join(part.capitalize() for part in options.name.split("_")) + "Env"
    module = f"--env-module {options.name}={options.name}.env:{env_class}"
    action = "" if options.skeleton else " --action tea"
    print(f"try it: python -m env_service check {options.name} {module}{action}")
    print(f"train on it: python launcher.py --conf {written[0].parent / 'train.yaml'} {module}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from env_service.checker import HttpProbe, LocalProbe, Probe, run_checks
    from env_service.registry import RegistryError, load, resolve

    try:
        probe: Probe = (
            HttpProbe(options.url, options.name)
            if options.url
            else LocalProbe(load(resolve([options.name], options.env_modules)[options.name]))
        )
    except (RegistryError, ValueError) as error:
        return _fail(options, f"--url {options.url} {error}" if options.url else str(error), 2)
    problems = 0
    for finding in run_checks(probe, split=options.split, action=options.action):
        problems += bool(finding.problem)
        print(f"{'BROKEN' if finding.problem else 'ok    '} {finding.promise}")
        if finding.problem:
            print("       " + finding.problem.replace("\n", "\n       "))
    print(f"{options.name}: {problems} broken" if problems else f"{options.name}: keeps the contract")
    return 1 if problems else 0


def _demonstrate(options: argparse.Namespace) -> int:
    from env_service.demonstrations import NoDemonstrations, write_demonstrations
    from env_service.parameters import read_values

    try:
        params, narrowed = read_values(options.params), read_values(options.filter)
    except ValueError as error:
        return _fail(options, str(error), 2)
    try:
        print(write_demonstrations(options, params, narrowed))
    except (NoDemonstrations, OSError) as error:
        return _fail(options, str(error))
    return 0


def _fail(options: argparse.Namespace, message: str, status: int = 1) -> int:
    print(f"{options.prog} {options.command}: error: {message}", file=sys.stderr)
    return status
