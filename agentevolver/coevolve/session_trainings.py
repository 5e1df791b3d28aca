"""The trainings of a round in one session: workers, vLLM and TransferQueue stay up between them.

Each writes what it writes as a process of its own: `logs/driver.log` and `logs/main.log` of its folder, status,
metrics, checkpoints. What a session cannot change (another model, other lengths) opens another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from rich.text import Text

from agentevolver.coevolve.trainings import LOG, Told, Trained, Training, finished, follow, steps_of, write_training
from agentevolver.config.checks import for_verl, from_config
from agentevolver.config.schema import Settings
from agentevolver.errors import ConfigError, TrainingFailed
from agentevolver.monitor.console import line_of, validation_lines
from agentevolver.monitor.results import validations_of
from agentevolver.run import main as job
from env_service.client import EnvServiceError

if TYPE_CHECKING:
    from agentevolver.trainer.session import Session

logger = logging.getLogger(__name__)


class SessionTrainings:
    """Each training is one of a session's, carried out in a thread of this process.

    Args:
        config: the run's resolved configuration, a plain tree.
        show: what takes the lines of the trainings' steps.
    """

    def __init__(self, config: Mapping[str, Any], show: Callable[[str], None] = print) -> None:
        self._config = config
        self._show = show
        self._session: Session | None = None
        # One for all: Ray is joined and left in it.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="session")

    async def train(self, training: Training, told: Told) -> Trained:
        """Train to the last step (see `agentevolver.coevolve.trainings.Trainings.train`)."""
        if (trained := finished(training)) is not None:
            return trained
        write_training(training, self._config)
        told("starting", None)
        begun = {int(record["step"]) for record in steps_of(training.folder)}

        def tell(phase: str, step: int | None) -> None:
            told(phase, step)
            for record in steps_of(training.folder):
                if int(record["step"]) not in begun:
                    begun.add(int(record["step"]))
                    lines = [Text.from_markup(line_of(record)).plain, *validation_lines(validations_of(record), {})]
                    for line in lines:
                        self._show(f"    {line}")

        following = asyncio.create_task(follow(training.folder, tell))
        log = training.folder / "logs" / LOG
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._carry_out, training.folder)
        except ConfigError as error:
            raise ConfigError(f"{training.name}: {error}") from error
        except (EnvServiceError, TrainingFailed, OSError) as error:
            raise TrainingFailed(f"{training.name}: {error} (log: {log})") from error
        finally:
            following.cancel()
        if (trained := finished(training)) is None:
            raise TrainingFailed(f"{training.name}: it ended without a checkpoint of step {training.steps} ({log})")
        tell("done", training.steps)
        return trained

    async def close(self) -> None:
        """End what is up."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._leave)
        self._thread.shutdown()

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _carry_out(self, folder: Path) -> None:
        """What `agentevolver.run.main` does for a run, on the session."""
        config = OmegaConf.load(folder / "config.yaml")
        assert isinstance(config, DictConfig)
        settings = from_config(config)
        with _log_in(folder / "logs"):
            job.check(config, settings)
            job.prepare(config, settings)
            self._train(config, settings, folder / "logs" / LOG)

    def _train(self, config: DictConfig, settings: Settings, log: Path) -> None:
        job.keep_ray_here(settings)
        # Not above: torch, verl and Ray are for who trains.
        from agentevolver.trainer.fixed import CannotChange

        job.check_parser(config, settings)
        try:
            try:
                session = self._session or self._opened(config, settings, log)
                session.train(for_verl(config), settings)
            except CannotChange as change:
                logger.info("another session is opened: %s", change)
                self._leave()
                self._opened(config, settings, log).train(for_verl(config), settings)
        finally:
            if self._session is not None and not self._session.usable:
                self._leave()

    def _opened(self, config: DictConfig, settings: Settings, log: Path) -> Session:
        from agentevolver.trainer.session import Session

        with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
            self._session = Session.open(for_verl(config), settings)
        return self._session


@contextmanager
def _log_in(folder: Path) -> Iterator[None]:
    """Write what is logged meanwhile into a folder's driver.log too."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "driver.log")
    handler.setFormatter(logging.Formatter(job.LOG_FORMAT))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
