"""`python -m agentevolver.recipes.offline.teacher`: serve the rule-based stand-in for a language model.

Each option has an environment variable: `TEACHER_` and the option's name in capitals. If `TEACHER_TOKEN` is set,
callers must send it as their API key; it must be set to listen beyond loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from agentevolver.llm.settings import TEACHER_TOKEN
from agentevolver.recipes.offline.teacher.prompt import WHAT, MistakeRates
from agentevolver.recipes.offline.teacher.service import Teacher, make_app
from agentevolver.utils.secrets import secret
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.server import WebServer, server_config


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return value


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m agentevolver.recipes.offline.teacher", description=f"Serve {WHAT}.")

    def add(name: str, kind: Callable[[str], object], default: str | None, text: str) -> None:
        # argparse converts and checks a default that is text, so a wrong variable is an error as a wrong option is.
        variable = "TEACHER_" + name.upper().replace("-", "_")
        made.add_argument(
            f"--{name}",
            type=kind,
            default=os.environ.get(variable, default),
            help=f"{text} (default {default}; {variable})",
        )

    add("host", str, "127.0.0.1", "address to listen on")
    add("port", int, "8093", "port to listen on")
    add("seed", int, "0", "of the draws and mistakes")
    for rate in fields(MistakeRates):
        add(
            rate.name.replace("_", "-"),
            _share,
            f"{rate.default:g}",
            f"share of {rate.name.replace('_', ' ')} on purpose",
        )
    add("delay", float, "0", "seconds to wait before every reply")
    add("record", Path, None, "file that gets a JSON line for every mistake made on purpose")
    return made


def main(argv: Sequence[str] | None = None) -> None:
    options = parser().parse_args(argv)
    rates = MistakeRates(**{rate.name: getattr(options, rate.name) for rate in fields(MistakeRates)})
    teacher = Teacher(seed=options.seed, rates=rates, record=options.record)
    try:
        access = Access(options.host, secret(TEACHER_TOKEN), TEACHER_TOKEN)
    except ValueError as error:
        raise SystemExit(f"--host {error}") from error
    app = make_app(teacher, access=access, delay_s=options.delay)
    print(f"This is {WHAT}, at http://{options.host}:{options.port}/v1", flush=True)
    config = server_config(app, host=options.host, port=options.port, log_level="warning", stop_s=5)
    asyncio.run(WebServer(config).serve())


if __name__ == "__main__":
    main()
