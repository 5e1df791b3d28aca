"""A training run: joins or starts Ray, passes the configuration to verl, and turns errors into one line."""

from __future__ import annotations

import logging
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf, open_dict
from ray.exceptions import RayError, RayTaskError
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from agentevolver.config.schema import Settings, of_verl
from agentevolver.trainer.preload import SOCKET, executable_of
from agentevolver.trainer.transport import weights as transport
from agentevolver.trainer.transport import worker
from agentevolver.trainer.weights import KEY, check_architecture, weights_at
from agentevolver.utils import run_key
from agentevolver.utils.errors import ConfigError, TrainingFailed, last_line, short_of_memory
from agentevolver.utils.secrets import SECRETS, adopt_secrets

logger = logging.getLogger(__name__)

# Environment variables that workers inherit, beside the device's own.
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
# Time for Ray to free the resources of a training that has just ended in the same cluster.
FREE_S = 60.0

_VerlTaskRunner: Any = TaskRunnerV1.__ray_metadata__.modified_class


class TaskRunner(_VerlTaskRunner):
    """verl's task runner: the Ray actor that holds the trainer."""

    def run(self, config: DictConfig) -> None:
        _wait_for_cluster(int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes), of_verl(config).device)
        run_key.create()
        import agentevolver.trainer.asynchronous  # noqa: F401  # registers our trainers

        # Loggers in this process need secrets (Weights & Biases). Other workers fetch only the secrets they need.
        adopt_secrets()
        keep_rows_with_trainers(config)
        super().run(config)


def run(config: DictConfig, settings: Settings) -> None:
    """Train to the end, resuming from the newest checkpoint. `config` comes from `for_verl` and is consumed.

    Raises:
        ConfigError: verl or `trainer.weights` refuses the configuration.
        TrainingFailed: Ray could not be started, or the trainer ended with an error.
    """
    _validate(config)
    found = None
    if settings.trainer.weights is not None:
        found = weights_at(settings.trainer.weights)
        check_architecture(found, config.actor_rollout_ref.model)
    with open_dict(config):
        config.actor_rollout_ref[KEY] = None if found is None else found.to_dict()
    folder = transport.new_folder()
    _place_in_cluster(config, settings, {transport.FOLDER: str(folder)})
    try:
        run_ppo(config, task_runner_class=ray.remote(TaskRunner))
    except (RayError, TrainingFailed) as error:
        raise _failed(settings, error) from error
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def keep_rows_with_trainers(config: DictConfig) -> None:
    """Keep TransferQueue's storage off nodes without Ray CPUs: those are for rollouts and may disappear."""
    storage = "transfer_queue.backend.SimpleStorage.required_node_resource"
    if OmegaConf.select(config, storage) is None:
        OmegaConf.update(config, storage, "CPU", force_add=True)


def _validate(config: DictConfig) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # verl warns if there is no critic
        use_critic = bool(need_critic(config))
    try:
        with redirect_stdout(StringIO()):  # verl prints that the configuration is valid
            validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=use_critic)
    except (AssertionError, ValueError) as error:
        raise ConfigError(f"verl: {' '.join(str(error).split())}") from error


def _failed(settings: Settings, error: Exception) -> TrainingFailed:
    """Return the error to raise, and write the trainer's traceback to a file."""
    if isinstance(error, TrainingFailed):
        return error
    if (short := short_of_memory(str(error))) is not None:
        return TrainingFailed(short)
    if not isinstance(error, RayTaskError):
        return TrainingFailed(f"the trainer's process was lost: {last_line(error)}")
    cause = error.cause if isinstance(error.cause, BaseException) else error
    logger.debug("the trainer's traceback", exc_info=error)
    path = settings.experiment_dir / "logs" / "trainer_error.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(error), encoding="utf-8")
    return TrainingFailed(f"{type(cause).__name__}: {last_line(cause)} (traceback: {path})")


def _wait_for_cluster(wanted: int, device: str) -> None:
    if (known := ray.cluster_resources().get("GPU", 0)) < wanted:
        stands = " (without a GPU too: one for each rank)" if device == "cpu" else ""
        raise TrainingFailed(
            f"the Ray cluster has {known:.0f} GPUs, the training wants {wanted}: start the trainer's "
            f"nodes with `ray start --num-gpus=N`{stands}, or see trainer.nnodes and trainer.n_gpus_per_node"
        )
    # After a training has ended, Ray takes some time to free its GPUs.
    _wait(lambda: ray.available_resources().get("GPU", 0) >= wanted, f"the {wanted} GPUs of this training are not free")
    # The queue's actor name is the same for all jobs of a cluster: two trainings would share one queue.
    _wait(_has_no_queue, "another training runs")


def _has_no_queue() -> bool:
    try:
        ray.get_actor("TransferQueueController", namespace="transfer_queue")
    except (ValueError, RayError):
        return True
    return False


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + FREE_S
    while not condition():
        if time.monotonic() >= deadline:
            raise TrainingFailed(f"{what} in the Ray cluster: stop the other job, or train in another cluster")
        time.sleep(0.1)


def _place_in_cluster(config: DictConfig, settings: Settings, own: Mapping[str, str]) -> None:
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
            if settings.ray.address:
                # TMPDIR is a folder of this node, which other nodes may lack.
                ray_init.runtime_env.env_vars.pop("TMPDIR", None)
            return
        # No cluster to join (the main job run by hand): verl starts a private one.
        ray_init.num_cpus = settings.ray.num_cpus
        ray_init.num_gpus = settings.ray.num_gpus
        ray_init.include_dashboard = False
        if settings.ray.object_store_memory:
            ray_init.object_store_memory = settings.ray.object_store_memory
