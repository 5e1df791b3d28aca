"""Command line of the launcher. The only module of the package that prints."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentevolver.launcher.options import Options, parse
from agentevolver.utils.errors import LaunchError, TrainingFailed, UsageError
from agentevolver.utils.secrets import MASK, masked_arguments, masked_text, read_dotenv
from agentevolver.utils.terminal import guard_output

if TYPE_CHECKING:
    from agentevolver.config.checks import Resolved
    from agentevolver.launcher.plan import Plan
    from agentevolver.launcher.preflight import Check
    from agentevolver.launcher.records import RunRegistry

logger = logging.getLogger("agentevolver.launcher")


def main(arguments: Sequence[str], root: Path, prog: str = "launcher") -> int:
    """Run a command line and return the exit code.

    Args:
        root: checkout with `.env` and the run records.
        prog: prefix of error messages.
    """
    guard_output()
    try:
        options = parse(arguments)
        _set_up_logging()
        return _do(options, list(arguments), root)
    except LaunchError as error:
        return _fail(error, prog)
    except KeyboardInterrupt:
        return 130


def _do(options: Options, arguments: list[str], root: Path) -> int:
    from agentevolver.launcher.experiment import refuse_mixing
    from agentevolver.launcher.records import RunRegistry
    from agentevolver.utils.experiments import find_experiment

    if options.view:
        read_dotenv(root)
        return _view(options)
    registry = RunRegistry(root / ".agentevolver" / "run")
    if options.status:
        print(_status(registry))
        return 0
    if options.stop is not None:
        _stop(registry, options.stop)
    if options.kill and not (options.dry_run or options.show_config):
        _kill(registry)
    if not options.starts_something:
        return 0
    read_dotenv(root)
    resumed = (
        find_experiment(options.resume, asked=f"--resume {options.resume}") if options.resume is not None else None
    )
    if resumed is not None:
        options = _as_started(options, resumed)
        arguments = options.arguments()
    configuration = load_configuration(options)
    if resumed is not None and configuration.experiment_dir.resolve() != resumed.resolve():
        raise UsageError(
            f"--resume {resumed}: this would run in {configuration.experiment_dir}; use --conf to start another "
            "experiment"
        )
    if options.dry_run or options.show_config:
        print(_dry_run(options, configuration, registry))
        return 0
    from agentevolver.launcher.plan import make_plan, resolve_config
    from agentevolver.launcher.preflight import preflight
    from agentevolver.launcher.run import carry_out

    if options.conf is not None and not options.allow_changes:
        refuse_mixing(configuration.experiment_dir, resolve_config(configuration.config))
    checks, presence = preflight(options, configuration, registry)
    for problem in (check.problem for check in checks if check.problem is not None):
        raise problem
    for line in (*configuration.derived, *_size_lines(checks)):
        logger.info("%s", line)
    for line in _warnings(options, configuration):
        logger.warning("WARNING: %s", line)
    plan = make_plan(options, configuration, presence, registry)
    logger.info("run %s on %s, writes to %s", plan.run_id, plan.device, configuration.experiment_dir)
    return _told(plan, configuration, lambda: carry_out(plan, registry, masked_arguments(arguments), root))


def _told(plan: Plan, configuration: Resolved, work: Callable[[], int]) -> int:
    """Execute the plan, then log a summary of the run, even if it failed."""
    from agentevolver.launcher.ending import ending

    code, began = LaunchError.exit_code, time.monotonic()
    try:
        code = work()
        return code
    finally:
        if plan.job is not None:
            seconds, ledger = time.monotonic() - began, configuration.settings.usage_ledger
            try:
                for line in ending(plan.experiment_dir, code=code, seconds=seconds, ledger=ledger):
                    logger.info("%s", line)
            except (OSError, TrainingFailed) as error:  # does not change the exit code
                logger.warning("the run's summary cannot be read: %s", error)


def _view(options: Options) -> int:
    from agentevolver.utils.experiments import find_experiment
    from agentevolver.view.app import view

    named = [path if path.is_dir() or path.is_absolute() else find_experiment(str(path)) for path in options.view]
    view(named, options.host, options.port)
    return 0


def load_configuration(options: Options) -> Resolved:
    """Compose and check the configuration. Raises UsageError, or LaunchError if no port is free."""
    from agentevolver.config.checks import load
    from agentevolver.config.environments import EnvServiceSettings
    from agentevolver.config.layers import read_layers, written
    from agentevolver.config.openings import load_measured
    from agentevolver.launcher.experiment import check_checkpoint, check_target
    from agentevolver.utils.errors import ConfigError
    from agentevolver.utils.net import take_url_from

    overrides = list(options.overrides)
    if options.target is not None:
        check_target(options.target, Path.cwd())
    try:
        layers, key = read_layers(options.conf, overrides), "env_service.env_url"
        if written(layers, key) is None and not written(layers, "env_service.external"):
            # Other checkouts and other users may serve environments on this machine.
            overrides.insert(0, f"{key}={take_url_from(key, EnvServiceSettings().env_url)}")
        # Services alone need no lengths.
        resolved = (
            load(None, overrides)
            if options.conf is None
            else load_measured(options.conf, overrides, modules=options.env_modules)
        )
    except ConfigError as error:
        raise UsageError(" ".join(str(error).split())) from error
    check_checkpoint(resolved.config)
    return resolved


def _size_lines(checks: Sequence[Check]) -> list[str]:
    return [line for check in checks if check.name in ("gpu", "host") for line in check.found]


def _warnings(options: Options, configuration: Resolved) -> list[str]:
    from agentevolver.utils import recipes

    if options.conf is None:
        return []
    of_recipes = recipes.called("warnings", configuration.settings, configuration.config)
    return [line for lines in of_recipes for line in lines]


def _dry_run(options: Options, configuration: Resolved, registry: RunRegistry) -> str:
    """Return the plan and the configuration. Problems of the machine are listed, not raised."""
    from agentevolver.launcher.experiment import problem_with
    from agentevolver.launcher.plan import make_plan, masked, resolve_config
    from agentevolver.launcher.preflight import preflight

    _ask_verl(configuration)
    checks, presence = preflight(options, configuration, registry)
    obstacles: list[LaunchError | str] = [check.problem for check in checks if check.problem is not None]
    for refused in (problem for problem in obstacles if isinstance(problem, UsageError)):
        raise refused
    if options.conf is not None and not options.allow_changes:
        problem = problem_with(configuration.experiment_dir, resolve_config(configuration.config))
        obstacles += [] if problem is None else [problem]
    plan = make_plan(options, configuration, presence, registry)
    facts = [*configuration.derived, *_size_lines(checks)]
    if options.conf is not None:
        facts += [f"WARNING: {line}" for line in _warnings(options, configuration)]
    lines = [*facts, *(f"a start would fail now: {obstacle}" for obstacle in obstacles)]
    # Masked line by line: the last word of a line must not be read as the scheme (`basic ...`) of the next line.
    told = "\n".join([plan.describe(commands=options.show_config), *lines]).splitlines()
    shown = "\n".join(masked_text(line) for line in told)
    if options.show_config:
        return f"{shown}\n\n# the resolved configuration\n{masked(plan.config)}"
    return f"{shown}\n--show-config prints the commands and the whole configuration; nothing was started"


def _ask_verl(configuration: Resolved) -> None:
    """Let verl's dataclasses check the values that our own checks left undecided. Raises UsageError."""
    # Importing verl takes seconds, so it is done only if a value needs it.
    if configuration.undecided:
        from agentevolver.config.checks import for_verl
        from agentevolver.config.verl_keys import ask_verl
        from agentevolver.utils.errors import ConfigError

        try:
            ask_verl(for_verl(configuration.config), configuration.undecided)
        except ConfigError as error:
            raise UsageError(str(error)) from error


def _status(registry: RunRegistry) -> str:
    lines = []
    for record in registry.records():
        state = f"since {record.started_at}: its launcher is gone; --kill ends what is left"
        if record.damaged:
            state = f"{record.damaged}; --kill ends what is left"
        elif record.here and record.launcher.alive:
            state = f"since {record.started_at}: running (launcher pid {record.launcher.pid})"
        lines.append(f"{record.run_id}  {record.experiment_dir}  {state}")
        lines += _doing(Path(record.experiment_dir))
        lines += [
            f"  {item.name}: pid {item.process.pid}{'' if item.process.alive else ' (ended)'}"
            for item in record.started
        ]
        if record.dashboard is not None:
            lines.append(f"  dashboard: {record.dashboard}")
        lines.append(f"  {len(record.running())} processes")
    return "\n".join(lines) or "no run of this checkout"


def _doing(experiment_dir: Path) -> list[str]:
    from agentevolver.trainer.monitor.log import read_status

    status = read_status(experiment_dir)
    if "phase" not in status:
        return []
    steps = f", step {status['step']} of {status['total_steps']}" if {"step", "total_steps"} <= status.keys() else ""
    return [
        f"  {status['phase']}{steps}",
        *(f"  {key}: {status[key]}" for key in ("stuck", "warning") if key in status),
    ]


def _as_started(options: Options, folder: Path) -> Options:
    """Return the options of the experiment's last launch, overlaid with `options`."""
    from agentevolver.launcher.experiment import last_launch
    from agentevolver.utils.ownership import TRUST, is_ours

    record = last_launch(folder)
    if not (options.trust_run or is_ours(folder / "config.yaml")):
        did = f"repeats {' '.join(masked_arguments(record['argv']))} in {record.get('cwd')} and unpickles checkpoints"
        raise UsageError(f"this checkout did not make {folder}, and --resume {did}: give {TRUST} if you trust it")
    hidden = next((item for item in record["argv"] if MASK in item), None)
    if hidden is not None:
        raise UsageError(
            f"--resume {folder}: {hidden.partition('=')[0]} is a secret from the command line, which is not recorded; "
            "use --conf"
        )
    before = parse(record["argv"])
    assert before.conf is not None
    return replace(
        options,
        conf=Path(record.get("cwd") or ".") / before.conf,
        overrides=(*_lasting(before.overrides, folder), *options.overrides),
        services=tuple(dict.fromkeys((*before.services, *options.services))),
        env_modules=tuple(dict.fromkeys((*before.env_modules, *options.env_modules))),
        target=before.target,
        resume=None,
    )


def _lasting(overrides: Sequence[str], folder: Path) -> list[str]:
    """Return the overrides that also hold for the next launch."""
    from agentevolver.trainer.checkpoints import whole_checkpoints

    # `trainer.resume_*` holds for one launch only, unless the experiment started from another run's checkpoint and
    # has not saved one of its own.
    given = dict(item.partition("=")[::2] for item in overrides if item.startswith("trainer.resume_"))
    if given.get("trainer.resume_mode") == "resume_path" and not whole_checkpoints(folder / "checkpoints"):
        return list(overrides)
    return [item for item in overrides if item.partition("=")[0] not in given]


def _stop(registry: RunRegistry, name: str) -> None:
    known = [record for record in registry.records() if not record.damaged]
    records = [record for record in known if not name or record.is_called(name)]
    if name and not records:
        names = ", ".join(record.experiment_dir for record in known) or "none"
        raise UsageError(f"--stop {name}: no run of this checkout has this name (running: {names})")
    for record in records:
        logger.info("run %s: stopping", record.run_id)
        if registry.stop(record):
            logger.info("run %s: stopped", record.run_id)
        else:
            logger.info("run %s: its launcher is gone; %s that it left", record.run_id, registry.reap(record))
    if not records:
        logger.info("nothing to stop: no run of this checkout is recorded")


def _kill(registry: RunRegistry) -> None:
    """End every run. A run that cannot be ended does not keep the others alive.

    Raises:
        LaunchError: names the processes that could not be ended.
    """
    found, problems = registry.records(), []
    for record in found:
        try:
            logger.info("run %s: %s", record.run_id, registry.reap(record))
        except LaunchError as error:
            problems.append(str(error))
    if not found:
        logger.info("nothing to end: no run of this checkout is recorded")
    if problems:
        raise LaunchError("; ".join(problems))


def _set_up_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[launcher] %(message)s"))
    package = logging.getLogger("agentevolver.launcher")
    package.handlers[:] = [handler]
    package.setLevel(os.environ.get("AGENTEVOLVER_LOG_LEVEL", "INFO").upper())
    package.propagate = False


def _fail(error: LaunchError, prog: str = "launcher") -> int:
    print(f"{prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
    return error.exit_code
