"""Command line of the task manager.

Exit codes: 0 success, 1 failure (one line), 2 wrong configuration, 130 interrupted. Finished work is kept in each case.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentevolver.utils.recipes import default_environment
from agentevolver.utils.terminal import guard_output

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM
    from task_manager.settings import QuestioningConfiguration

Run = Callable[[argparse.Namespace, "QuestioningConfiguration"], Coroutine[Any, Any, int]]


def main(arguments: Sequence[str] | None = None) -> int:
    guard_output()
    options = _parser().parse_args(arguments)
    level = logging.INFO if options.verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for chatty in ("httpx", "httpx2", "httpcore", "openai", "sentence_transformers"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # Imported here, so that `--help` answers at once.
    from agentevolver.llm.embeddings import EncoderUnavailable
    from agentevolver.llm.errors import LLMError
    from agentevolver.utils.errors import ConfigError
    from env_service.protocol import EnvServiceError
    from task_manager.journal import JournalError
    from task_manager.pipeline import QuestioningFailed
    from task_manager.profile import ProfileError
    from task_manager.services import ServiceFailed

    try:
        return _run(options)
    except (ConfigError, ProfileError) as error:
        return _fail(f"configuration: {error}", 2)
    except (
        EnvServiceError,
        LLMError,
        JournalError,
        QuestioningFailed,
        EncoderUnavailable,
        ServiceFailed,
        OSError,
    ) as error:
        return _fail(f"error: {error}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted; run the same command again to resume", 130)


def _run(options: argparse.Namespace) -> int:
    from agentevolver.config.manager_settings import from_experiment, from_settings_file
    from task_manager.services import running
    from task_manager.settings import QuestioningConfiguration

    if options.conf is not None:
        configuration = from_experiment(options.conf, options.overrides, options.environment)
    elif options.environment is not None:
        return _fail("configuration: --environment needs --conf", 2)
    elif options.settings is not None:
        configuration = from_settings_file(options.settings, options.overrides)
    else:
        configuration = QuestioningConfiguration()
        if options.overrides:
            return _fail("configuration: key=value needs --conf or --settings", 2)
    if options.command == "profile" and options.env_url is not None:
        service = configuration.env_service.model_copy(
            update={"env_url": options.env_url, "env_type": options.env_type}
        )
        configuration = configuration.model_copy(update={"env_service": service})
    services = (
        running(configuration, configuration.task_manager.store_path / "logs")
        if options.with_services
        else nullcontext()
    )
    with services:
        return asyncio.run(_COMMANDS[options.command](options, configuration))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m task_manager", description="Self-questioning: an agent makes its own training tasks."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    texts = {
        "profile": "draft the profile of an environment from its tools and a few steps in it",
        "explore": "explore, and stop there",
        "synthesize": "explore, synthesise, verify, and write the tasks",
        "verify": "execute the reference solutions of a task file again",
        "stats": "show how many proposals became tasks, and why the others were dropped",
        "show": "show tasks and where they come from, or what was dropped and why",
    }
    for name, text in texts.items():
        _add_common(commands.add_parser(name, help=text, description=text))
    _add_own(commands.choices)
    return parser


def _add_common(command: argparse.ArgumentParser) -> None:
    source = command.add_mutually_exclusive_group()
    source.add_argument("--conf", type=Path, metavar="FILE", help="an experiment's yaml")
    source.add_argument(
        "--settings", type=Path, metavar="FILE", help="a yaml with the sections task_manager, llm, env_service and data"
    )
    command.add_argument("--environment", metavar="NAME", help="which of an experiment's several environments")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="override a key of the configuration")
    command.add_argument(
        "--with-services", action="store_true", help="start the environment service and the offline teacher if needed"
    )
    command.add_argument("-v", "--verbose", action="store_true", help="log what happens")


def _add_own(commands: dict[str, argparse.ArgumentParser]) -> None:
    profile = commands["profile"].add_argument
    profile("--env-url", metavar="URL", help="the environment's service")
    profile("--env-type", default=default_environment(), metavar="NAME", help="the environment's name there")
    profile("--split", default="train", help="the split whose first task's world is looked at (default: %(default)s)")
    profile("--steps", type=int, default=8, help="exploratory steps (default: %(default)s)")
    profile("--out", type=Path, metavar="FILE", help="where to write the profile; without it, to the screen")
    verify = commands["verify"].add_argument
    verify("--tasks", type=Path, metavar="FILE", help="the task file; without it, the configuration's")
    verify("--out", type=Path, metavar="FILE", help="write the tasks that hold there")
    show = commands["show"].add_argument
    show("--id", metavar="TASK", help="one task, with the whole way it came about")
    show("--dropped", action="store_true", help="what was dropped, and why")
    show("--limit", type=int, default=20, metavar="N", help="at most so many (default: %(default)s)")


async def _profile(options: argparse.Namespace, configuration: QuestioningConfiguration) -> int:
    from env_service.client import AsyncEnvClient
    from task_manager.profile import save_profile
    from task_manager.synthesize import draft_profile
    from task_manager.world import SeedWorld

    service = configuration.env_service
    async with (
        _language_model(configuration) as llm,
        AsyncEnvClient(service.env_url, timeout_s=service.timeout_s) as client,
    ):
        seeds = await client.get_env_profile(service.env_type, options.split)
        if not seeds:
            return _fail(f"error: {service.env_type} lists no task in {options.split!r}", 1)
        settings, world = configuration.task_manager, SeedWorld(service.env_type, seeds[0], service.env_params)
        profile = await draft_profile(
            client,
            llm,
            world,
            steps=options.steps,
            reply_format=settings.reply_format,
            max_chars=settings.max_observation_chars,
            action_format=settings.action_format,
        )
    if options.out is None:
        print(profile.model_dump_json(indent=2))
    else:
        save_profile(profile, options.out)
        print(
            f"{options.out}: {len(profile.entities)} entities; read it and set task_preference and rubrics before you "
            "use it"
        )
    return 0


async def _question(options: argparse.Namespace, configuration: QuestioningConfiguration) -> int:
    from task_manager.report import print_funnel, progress_bar
    from task_manager.synthetic_tasks import open_run

    explore_only = options.command == "explore"
    async with _language_model(configuration) as llm, open_run(configuration, llm) as run:
        if run.plan.n == 0:
            return _fail("configuration: task_manager.n is 0, so nothing is explored; set it to 1 or more", 2)
        with progress_bar("exploring" if explore_only else "making tasks") as on_progress:
            try:
                if explore_only:
                    await run.pipeline.run(on_progress, explore_only=True)
                else:
                    await run.make_tasks(on_progress)
            finally:
                funnel = run.pipeline.funnel()
                spent = llm.ledger.spent()
                funnel.tokens, funnel.cost = spent.tokens, spent.cost
        print_funnel(funnel)
        if not explore_only:
            print(f"tasks: {run.target}")
    return 0


async def _verify(options: argparse.Namespace, configuration: QuestioningConfiguration) -> int:
    from task_manager.verify import recheck

    return await recheck(configuration, options.tasks, options.out)


async def _stats(options: argparse.Namespace, configuration: QuestioningConfiguration) -> int:
    from task_manager.report import print_stats

    return print_stats(configuration)


async def _show(options: argparse.Namespace, configuration: QuestioningConfiguration) -> int:
    from task_manager.report import print_tasks

    return print_tasks(configuration, task_id=options.id, dropped=options.dropped, limit=options.limit)


def _language_model(configuration: QuestioningConfiguration) -> LLM:
    from agentevolver.llm.client import LLM

    settings, folder = configuration.llm, configuration.task_manager.store_path
    # Both beside the journal: a resumed run continues the counts and repeats no call.
    ledger = settings.ledger or folder / "llm_usage.sqlite"
    return LLM(settings.model_copy(update={"ledger": ledger, "cache": settings.task_making_cache(folder)}))


def _fail(message: str, status: int) -> int:
    print(message, file=sys.stderr)
    return status


_COMMANDS: dict[str, Run] = {
    "profile": _profile,
    "explore": _question,
    "synthesize": _question,
    "verify": _verify,
    "stats": _stats,
    "show": _show,
}
