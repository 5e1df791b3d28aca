"""Command line of the experience manager.

Exit codes: 0 success, 1 failure (one line), 2 wrong configuration, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experience_manager.pool import Configuration

Run = Callable[[argparse.Namespace, "Configuration"], int]

_TEXTS = {
    "list": "list experiences",
    "show": "show all fields of one experience",
    "search": "find the experiences nearest to a text",
    "add": "add an experience of your own",
    "edit": "change an experience",
    "pin": "protect experiences from pruning and from being outvoted",
    "unpin": "no longer protect experiences",
    "delete": "delete experiences",
    "prune": "delete experiences that were used often and helped little",
    "stats": "summarise the store",
    "check": "read the whole file and say whether it is damaged",
    "export": "write a workspace as JSONL, in ReMe's dump format",
    "import": "read JSONL in ReMe's dump format",
    "distill": "distil trajectory files of a run, or conversations that other programs recorded",
    "serve": "serve ReMe's routes over HTTP",
}


def main(arguments: Sequence[str] | None = None) -> int:
    from agentevolver.utils.terminal import guard_output

    guard_output()
    options = _parser().parse_args(arguments)
    level = logging.INFO if options.verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for name in ("httpx", "sentence_transformers"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Set before torch is imported: on few cores OpenMP's spinning threads are several times slower than one thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from agentevolver.utils.secrets import LIBRARIES, adopt_secrets

    # Called before huggingface_hub is imported, which reads its endpoint on import.
    adopt_secrets(LIBRARIES)
    # Imported here, so that `--help` answers at once.
    from agentevolver.config.layers import read_yaml
    from agentevolver.config.manager_settings import read_configuration
    from agentevolver.llm.embeddings import EncoderUnavailable
    from agentevolver.llm.errors import LLMError
    from agentevolver.utils.errors import ConfigError, UsageError
    from agentevolver.utils.ownership import refuse_orders
    from experience_manager import cli
    from experience_manager.errors import ExperienceError

    try:
        if options.config is not None and not options.trust_run:
            refuse_orders(options.config, read_yaml(options.config))
        configuration = read_configuration(
            options.conf, options.settings, options.store, options.set, config=options.config
        )
        run: Run = getattr(cli, f"run_{options.command}")
        return run(options, configuration)
    except (ConfigError, UsageError) as error:
        return _fail(f"configuration: {error}", 2)
    except (ExperienceError, EncoderUnavailable, LLMError, OSError) as error:
        return _fail(f"error: {error}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experience_manager", description="Self-navigating: the pool of experience."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in _TEXTS.items():
        _add_common(commands.add_parser(name, help=text, description=text))
    _add_looking(commands.choices)
    _add_changing(commands.choices)
    _add_serving(commands.choices)
    return parser


def _add_common(command: argparse.ArgumentParser) -> None:
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--conf",
        type=Path,
        metavar="FILE",
        help="an experiment's yaml; its store is experience.sqlite of the experiment",
    )
    source.add_argument("--settings", type=Path, metavar="FILE", help="a yaml with the sections exp_manager and llm")
    command.add_argument("--trust-run", action="store_true", help="use the keys that another checkout's --config names")
    source.add_argument("--config", type=Path, metavar="FILE", help="a run's config.yaml, as the launcher wrote it")
    command.add_argument("--store", type=Path, metavar="FILE", help="the store's file")
    command.add_argument(
        "--workspace", metavar="NAME", help="the part of the store (default: that of the settings, `default`)"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key, such as exp_manager.encoder.kind",
    )
    command.add_argument("-v", "--verbose", action="store_true", help="log what happens")


def _add_looking(commands: dict[str, argparse.ArgumentParser]) -> None:
    listing = commands["list"].add_argument
    listing("--limit", type=int, default=50, metavar="N", help="at most so many, the newest (default: %(default)s)")
    listing("--category", choices=("success", "failure", "comparative", "manual"))
    listing("--scope", metavar="TEXT", help="only what holds in this place")
    listing(
        "--sort",
        choices=("created", "uses", "utility", "lift", "paired", "support"),
        default="created",
        help="default: %(default)s",
    )
    listing("--json", action="store_true", help="one JSON object a line")
    commands["show"].add_argument("id", help="the id, or a beginning of it")
    search = commands["search"].add_argument
    search("text", help="a task, say")
    search("-k", type=int, default=5, help="how many (default: %(default)s)")
    search(
        "--context",
        metavar="TEXT",
        help="only what holds in a place that this text names (an environment's opening, say)",
    )
    commands["export"].add_argument("file", type=Path)


def _add_changing(commands: dict[str, argparse.ArgumentParser]) -> None:
    for name, required in (("add", True), ("edit", False)):
        add = commands[name].add_argument
        if name == "edit":
            add("id", help="the id, or a beginning of it")
        add("--when", metavar="TEXT", required=required, help="in which situation it helps")
        add("--content", metavar="TEXT", required=required, help="what to do")
        add("--scope", metavar="TEXT", help="the place where it holds; without it: everywhere")
    for name in ("pin", "unpin", "delete"):
        commands[name].add_argument("id", nargs="+", help="ids, or beginnings of them")
    prune = commands["prune"].add_argument
    prune("--min-uses", type=int, metavar="N", help="uses before an experience is judged; default: the settings'")
    prune(
        "--min-utility",
        type=float,
        metavar="SHARE",
        help="successes by use below which it goes; default: the settings'",
    )
    importing = commands["import"].add_argument
    importing("file", type=Path)
    importing(
        "--replace",
        action="store_true",
        help="in the place of what the workspace holds; without it: beside it, same ids replaced",
    )
    importing("--merge", action="store_true", help="join what says the same, as distillation does")
    distill = commands["distill"].add_argument
    distill("file", type=Path, nargs="+", help="trajectories/step_<n>.jsonl of a run, or logs in OpenAI's form")
    distill("--score", type=float, metavar="SCORE", help="the score of conversations that say none (0..1)")


def _add_serving(commands: dict[str, argparse.ArgumentParser]) -> None:
    serve = commands["serve"].add_argument
    serve(
        "--host",
        default="127.0.0.1",
        help="address to bind; anything but loopback needs EXPERIENCE_SERVICE_TOKEN (default: %(default)s)",
    )
    serve("--port", type=int, default=8001, help="port to bind (default: %(default)s)")
    serve(
        "--dump-dir",
        type=Path,
        metavar="FOLDER",
        help="where /vector_store may dump to and load from; without it neither is possible",
    )


def _fail(message: str, status: int) -> int:
    print(message, file=sys.stderr)
    return status
