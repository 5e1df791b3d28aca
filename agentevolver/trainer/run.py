"""Hands a resolved configuration to verl: joins Ray, runs verl's task runner with our trainer, names what went
wrong."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from typing import Any

import ray
from omegaconf import DictConfig, open_dict
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from agentevolver.config.schema import Settings
from agentevolver.errors import ConfigError, TrainingFailed, last_line
from agentevolver.preload import SOCKET, executable_of
from agentevolver.transport import run_key, weights, worker
from agentevolver.utils.secrets import SECRETS, adopt_secrets

logger = logging.getLogger(__name__)

# What workers inherit of this process's environment, beside the device's own variables.
PASSED_ON = (
    "TENSORBOARD_DIR",
    "PYTHONPATH",
    "TMPDIR",
    "AGENTEVOLVER_RUN_ID",
    SECRETS,
    "HF_TOKEN_PATH",
    "RAY_DEBUG_POST_MORTEM",
    "DEBUG_TAGS",
    SOCKET,
)

_VerlTaskRunner: Any = TaskRunnerV1.__ray_metadata__.modified_class


class TaskRunner(_VerlTaskRunner):
    """verl's task runner, in whose process our trainer is registered before it is looked up."""

    def run(self, config: DictConfig) -> None:
        """Train to the end."""
        run_key.create()
        import agentevolver.trainer.trainer  # noqa: F401

        # For what reports to others from here (Weights & Biases, say); every other worker asks for the secret that it
        # needs.
        adopt_secrets()
        super().run(config)


def run(config: DictConfig, settings: Settings) -> None:
    """Train on a configuration made by `settings.for_verl`.

    Raises:
        ConfigError: verl refuses the configuration.
        TrainingFailed: the trainer ended with an error.
    """
    try:
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    except (AssertionError, ValueError) as error:
        raise ConfigError(f"verl: {' '.join(str(error).split())}") from error
    folder = weights.new_folder()
    _place_in_cluster(config, settings, {weights.FOLDER: str(folder)})
    try:
        run_ppo(config, task_runner_class=ray.remote(TaskRunner))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        logger.debug("the trainer's traceback", exc_info=error)
        _write_traceback(settings, error)
        raise TrainingFailed(
            f"{type(cause).__name__}: {last_line(cause)} (traceback: {_traceback_path(settings)})"
        ) from error
    except ray.exceptions.RayError as error:
        raise TrainingFailed(f"the trainer's process was lost: {last_line(error)}") from error
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _place_in_cluster(config: DictConfig, settings: Settings, own: Mapping[str, str]) -> None:
    """Join the run's cluster, or declare a private one when there is none to join (the main job run by hand).

    `own` is what workers find in their environment beside what they inherit of this process's.
    """
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | dict(own)
    address = settings.ray.address or os.environ.get("RAY_ADDRESS")
    with open_dict(config):
        ray_init = config.ray_kwargs.ray_init
        ray_init.runtime_env.env_vars = {**settings.device_env, **environment}
        ray_init.runtime_env.worker_process_setup_hook = worker.HOOK
        ray_init.log_to_driver = False
        if SOCKET in os.environ:
            ray_init.runtime_env.py_executable = str(executable_of(os.environ[SOCKET]))
        if address:
            ray_init.address = address
            ray_init.pop("num_cpus", None)
            return
        ray_init.num_cpus = settings.ray.num_cpus
        ray_init.num_gpus = settings.ray.num_gpus
        ray_init.include_dashboard = False
        if settings.ray.object_store_memory:
            ray_init.object_store_memory = settings.ray.object_store_memory


def _traceback_path(settings: Settings) -> str:
    return str(settings.experiment_dir / "logs" / "trainer_error.log")


def _write_traceback(settings: Settings, error: Exception) -> None:
    path = settings.experiment_dir / "logs" / "trainer_error.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(error), encoding="utf-8")
