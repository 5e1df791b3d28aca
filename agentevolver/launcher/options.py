"""Arguments of the launcher. Imports nothing slow, so `--help` answers at once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from agentevolver.utils.errors import UsageError
from env_service.arguments import add_env_modules

DEFAULT_TARGET = "agentevolver.trainer.job.main"
_WITH = "--with-"
# The name under which --with-NAME starts the page that shows a run (`agentevolver.launcher.stack.LOGVIEW`).
LOGVIEW = "logview"
_EPILOG = """\
key=value items override the configuration, e.g. trainer.total_epochs=2 actor_rollout_ref.rollout.n=4.

  --with-NAME           also start NAME: a registered environment (served beside the one of the configuration), a \
service of a recipe
                        (its README says which), or one of your own that .env describes with NAME_PATH, NAME_SCRIPT and
                        NAME_HEALTH_URL (see example.env)

  --with-logview        also serve the page that shows the run (the same as --view); it stays when the run has ended by
                        itself, until it gets no request for an hour

Without --conf, --with-NAME starts the services alone, until Ctrl-C."""


@dataclass(frozen=True)
class Options:
    """Parsed and checked arguments of a launch."""

    conf: Path | None = None
    overrides: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    env_modules: tuple[str, ...] = ()
    target: str | None = None
    """Module of the main job; None: a recipe's if it has one, else the trainer's."""
    debug_tags: str | None = None
    kill: bool = False
    stop: str | None = None
    resume: str | None = None
    allow_changes: bool = False
    trust_run: bool = False
    dry_run: bool = False
    show_config: bool = False
    status: bool = False
    view: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    port: int | None = None

    @property
    def starts_something(self) -> bool:
        """Whether a run or a service is started."""
        return self.conf is not None or self.resume is not None or bool(self.services)

    def arguments(self) -> list[str]:
        """Return a command line that starts the same run."""
        conf = ["--conf", str(self.conf)] if self.conf is not None else []
        target = ["--target", self.target] if self.target is not None else []
        modules = [item for module in self.env_modules for item in ("--env-module", module)]
        return [*conf, *target, *modules, *(f"{_WITH}{name}" for name in self.services), *self.overrides]


def parse(arguments: Sequence[str]) -> Options:
    """Parse and check the command line.

    Raises:
        UsageError: an option is unknown or contradicts another one.
        SystemExit: `--help` was given and printed.
    """
    known, rest = parser().parse_known_args(list(arguments))
    services = tuple(dict.fromkeys(item.removeprefix(_WITH) for item in rest if item.startswith(_WITH)))
    unknown = [item for item in rest if item.startswith("-") and not item.startswith(_WITH)]
    if unknown:
        raise UsageError(
            f"unknown option {unknown[0]} (see --help; a configuration key is written key=value, without dashes)"
        )
    if "" in services or any("=" in name for name in services):
        raise UsageError("--with-NAME takes a name and no value, --with-logview for example")
    conf, overrides = split_conf(known.conf, [item for item in rest if not item.startswith("-")])
    asked = vars(known) | {
        "env_modules": tuple(known.env_modules),
        "view": tuple(known.view or ()),
        "services": services,
        "conf": conf,
    }
    options = Options(**asked, overrides=overrides)
    _check_view(options, rest)
    _check_stop_and_resume(options)
    if not (options.starts_something or options.kill or options.status or options.view or options.stop is not None):
        raise UsageError("nothing to do: give --conf examples/basic.yaml, or see --help")
    if options.debug_tags is not None and options.conf is None and options.resume is None:
        raise UsageError("--db marks breakpoints of the main job and needs --conf")
    if options.overrides and not options.starts_something:
        raise UsageError(f"{options.overrides[0]!r} overrides a configuration, give it with --conf")
    return options


def is_override(item: str) -> bool:
    """Whether an argument is key=value, and not a file or an experiment with `=` in its name."""
    key, equals, _ = item.partition("=")
    return bool(equals) and "/" not in key and not os.path.exists(item)


def split_conf(conf: Path | None, items: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the yaml, given by --conf or among `items`, and the overrides.

    Raises:
        UsageError: more than one yaml is named.
    """
    named = [item for item in items if item.endswith((".yaml", ".yml")) and not is_override(item)]
    if len(named) + (conf is not None) > 1:
        files = ", ".join([*([str(conf)] if conf is not None else []), *named])
        raise UsageError(f"a run has one yaml, but {files} are given: start one run for each")
    return (Path(named[0]) if named else conf), tuple(item for item in items if item not in named)


def help_text(prog: str) -> str:
    return parser(prog).format_help()


def _check_stop_and_resume(options: Options) -> None:
    if options.stop is not None and (
        options.starts_something
        or options.kill
        or options.status
        or options.view
        or options.dry_run
        or options.show_config
    ):
        raise UsageError("--stop stops runs and starts none; give it alone")
    if options.resume is not None and options.conf is not None:
        raise UsageError("--resume takes the yaml that the experiment was started with; remove --conf or --resume")
    if options.resume is not None and options.target is not None:
        raise UsageError("--resume runs the module that the experiment was started with; remove --target")
    if options.allow_changes and options.conf is None and options.resume is None:
        raise UsageError(
            "--allow-changes lets a run go on in an experiment of another configuration, and needs --conf or --resume"
        )


def _check_view(options: Options, rest: Sequence[str]) -> None:
    others = options.conf or options.resume or options.kill or options.status or options.dry_run or rest
    if options.view and (others or any(is_override(str(folder)) for folder in options.view)):
        raise UsageError("--view shows a run and starts none; during a run: --conf FILE --with-logview")
    if not options.view and (options.host != Options.host or options.port is not None):
        raise UsageError("--host and --port need --view")
    if options.port is not None and not 0 < options.port < 65536:
        raise UsageError(f"--port {options.port} is no port")
    if LOGVIEW in options.services and options.conf is None and options.resume is None:
        raise UsageError(
            "--with-logview shows a run and needs --conf; one that has ended: --view experiments/<project>/<experiment>"
        )


class LauncherParser(argparse.ArgumentParser):
    """ArgumentParser that raises UsageError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def parser(prog: str = "launcher.py") -> argparse.ArgumentParser:
    """Return the parser of a launch, without `--with-NAME` and key=value."""
    made = LauncherParser(
        prog=prog,
        usage=f"{prog} [[--conf] FILE] [options] [--with-NAME ...] [key=value ...]",
        description="Starts a training run and the services it needs, and stops what it started.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--conf", type=Path, metavar="FILE", help="the experiment's yaml, examples/basic.yaml for example")
    add("--dry-run", action="store_true", help="check everything, print the plan on a screen, start nothing")
    add("--show-config", action="store_true", help="as --dry-run, with every command and the resolved configuration")
    add("--status", action="store_true", help="show the runs that launchers of this checkout have started")
    add(
        "--view",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="show the run in experiments/<project>/<experiment> on a web page, until Ctrl-C; several, or a folder of "
        "several, to compare them",
    )
    add("--host", default=Options.host, help="with --view: the address to listen on (default: %(default)s)")
    add("--port", type=int, help="with --view: the port to listen on (default: the first free one from 8600 on)")
    add(
        "--stop",
        nargs="?",
        const="",
        metavar="NAME",
        help="stop the runs of this checkout in order, as Ctrl-C does, or that one",
    )
    add(
        "-k",
        "--kill",
        action="store_true",
        help="first end what launchers of this checkout have started, and nothing else",
    )
    add(
        "--resume",
        metavar="NAME",
        help="go on with an experiment, started as it was last: its folder, project/experiment or experiment",
    )
    add(
        "--allow-changes",
        action="store_true",
        help="go on in an experiment whose results come from another configuration",
    )
    add("--trust-run", action="store_true", help="with --resume: go on with a run that another checkout made")
    add(
        "--target",
        metavar="MODULE",
        help=f"module that is run as the main job (default: {DEFAULT_TARGET}, or that of a recipe that is on)",
    )
    add_env_modules(made)
    add(
        "--db",
        dest="debug_tags",
        metavar="TAGS",
        help="debug: breakpoints with these tags (separated by |) stop, and Ray keeps failed tasks for a debugger",
    )
    return made
