"""Training sessions: one configuration after another on the same Ray job, workers, vLLM and TransferQueue.

What takes the time of a start stays up between trainings; what a training's numbers depend on is made anew for each:
the policy with its optimiser and schedule, the trainer, loader, replay buffer, the workers of the agent loop, files and
records. A training in a session says what the same training says by itself.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from pprint import pprint
from types import TracebackType
from typing import Any, Self

import ray
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_reference_policy
from verl.utils.config import validate_config

from agentevolver.config.schema import Settings, of_verl
from agentevolver.errors import ConfigError, TrainingFailed, last_line
from agentevolver.preload import SOCKET, executable_of
from agentevolver.trainer.failures import RolloutsFailed
from agentevolver.trainer.fixed import check_joins, trains_critic
from agentevolver.trainer.weights import KEY, Weights, check_architecture, weights_at
from agentevolver.transport import run_key, worker
from agentevolver.transport import weights as transport
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
# For a rollout worker to be gone once it is killed, and for everything that is up to answer after a failed training.
END_S = 30.0
RECOVER_S = 60.0
# For the GPUs of a session before this one to be free again, and for its queue to be gone.
FREE_S = 60.0
QUEUE_S = 10.0

_VerlTaskRunner: Any = TaskRunnerV1.__ray_metadata__.modified_class


class SessionRunner(_VerlTaskRunner):
    """verl's task runner, which trains more than once; a Ray actor."""

    trainer: Any
    agent_loop_manager: Any

    def run(self, config: DictConfig) -> None:
        """Start what is up for all trainings and belongs to none: called by verl's `run_ppo` once Ray is there."""
        from verl.utils.logging_utils import configure_verl_logging

        configure_verl_logging()
        run_key.create()
        import transfer_queue as tq

        import agentevolver.trainer.asynchronous  # noqa: F401  # registers our trainers

        # For what reports to others from here (Weights & Biases, say); every other worker asks for the secret that it
        # needs.
        adopt_secrets()
        _resolve(config)
        keep_rows_with_trainers(config)
        tq.init(config.transfer_queue)
        self._random = torch.get_rng_state()

    def train(self, config: DictConfig) -> None:
        """Train to the end; raises what ended it."""
        from verl.trainer.ppo.v1 import get_trainer_cls

        settings = of_verl(config)
        pprint(OmegaConf.to_container(config, resolve=True))
        _resolve(config)
        os.environ["TENSORBOARD_DIR"] = str(settings.experiment_dir.resolve() / "tensorboard")
        torch.set_rng_state(self._random)
        self.config = config
        before, self.trainer = self.trainer, get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
        if before is not None:
            self.trainer.adopt(before)
        succeeded = False
        try:
            self.trainer.init()
            self.init_agent_loop_manager()
            self.trainer.fit(self.agent_loop_manager)
            succeeded = True
        finally:
            self._end_training(succeeded)
            if before is not None and not self.trainer.is_up:
                self.trainer = before  # which has what is up; this one had not come so far

    def recover(self) -> bool:
        """Whether all that is up answers and is at rest, so that another training may use it."""
        from agentevolver.trainer.adopt import Adopting

        if not isinstance(self.trainer, Adopting) or not self.trainer.is_up:
            return False
        self.trainer.actor_rollout_wg.sync_seconds()
        ray.get([server.get_server_address.remote() for server in self.trainer.llm_server_manager.server_handles])
        self.trainer.calm()
        self._clear_queue()
        return True

    def processes(self) -> dict[str, list[int]]:
        """Return the ids of the processes that are up, by what they are."""
        workers = [] if self.trainer is None else self.trainer.actor_rollout_wg.workers
        return {
            "runner": [os.getpid()],
            "workers": ray.get([one.__ray_call__.remote(_own_id) for one in workers]),
        }

    def close(self) -> None:
        """End TransferQueue; the rest ends with the job."""
        import transfer_queue as tq

        tq.close()

    def _end_training(self, succeeded: bool) -> None:
        """End what belongs to the training alone: its loggers, its threads, its processes."""
        manager, self.agent_loop_manager = self.agent_loop_manager, None
        try:
            self.trainer.close()
            tracking = getattr(self.trainer, "logger", None)
            if tracking is not None:
                tracking.finish(exit_code=0 if succeeded else 1)
        finally:
            end_actors([*self.trainer.actors, *(manager.actors if manager is not None else ())])
            self._clear_queue()

    @staticmethod
    def _clear_queue() -> None:
        import transfer_queue as tq

        for partition, keys in tq.kv_list().items():
            if keys:
                tq.kv_clear(keys=list(keys), partition_id=partition)


class Session:
    """A Ray job in which one configuration after another is trained; used from the process that drives it.

    `with Session.open(config, settings) as session: session.train(config, settings)`. One of them at a time in a
    process.
    """

    def __init__(self, config: DictConfig, runner: Any, folder: Path) -> None:
        """Made by `open`."""
        self._first = config
        self._runner = runner
        self._folder = folder
        self._usable = True
        self._begun = False

    @property
    def usable(self) -> bool:
        """Whether another training can be begun; if not, `close` it and open another one."""
        return self._usable

    @classmethod
    def open(cls, config: DictConfig, settings: Settings) -> Self:
        """Join the run's Ray, or start a private one, and start the process that the trainer lives in.

        Workers and vLLM are started by the first training.

        Args:
            config: of the first training, made by `for_verl`. What it says of them holds for all (`check_joins`).
            settings: its typed view.

        Raises:
            ConfigError: verl refuses the configuration.
            TrainingFailed: Ray or the process could not be started.
        """
        _validate(config)
        folder, first = transport.new_folder(), _copy(config)
        config.ray_kwargs.timeline_json_file = None  # verl would write it now, before anything has happened
        _place_in_cluster(config, settings, {transport.FOLDER: str(folder)})
        starting = _Starting()
        try:
            run_ppo(config, task_runner_class=starting)
            _wait_for_gpus(int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes), settings.device)
        except (RayError, TrainingFailed) as error:
            _leave(folder)
            raise _failed(settings, error) from error
        except BaseException:
            _leave(folder)
            raise
        return cls(first, starting.runner, folder)

    def train(self, config: DictConfig, settings: Settings, *, weights: Path | None = None) -> None:
        """Train to the end, or on from the newest checkpoint of the configuration's own folder.

        Args:
            config: made by `for_verl`; consumed.
            settings: its typed view.
            weights: a Hugging Face folder or a checkpoint that the policy begins with; None: `trainer.weights`, else
                the model's own. The reference policy is the model's own in any case.

        Raises:
            ConfigError: the training does not fit the session (`CannotChange`), or verl or the weights refuse it;
                nothing was begun.
            TrainingFailed: the trainer ended with an error, or the session is not `usable` any more.
        """
        if not self._usable:
            raise TrainingFailed("the session is lost with the training before: close it and open another one")
        _validate(config)
        if self._begun:
            check_joins(self._first, config)
        found = _found_weights(config, settings, weights)
        with open_dict(config):
            config.actor_rollout_ref[KEY] = None if found is None else found.to_dict()
            config.ray_kwargs = self._first.ray_kwargs
        self._usable, self._begun = False, True
        try:
            ray.get(self._runner.train.remote(config))
        except RayError as error:
            failed = _failed(settings, error)
            # What we raise ourselves ends a training between two calls of its workers; of anything else nobody knows
            # what it left behind.
            if isinstance(error, RayTaskError) and isinstance(error.cause, TrainingFailed | RolloutsFailed):
                self._usable = self._recovered()
            raise failed from error
        self._usable = True

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Return the ids of the processes that are up: `runner`, `workers`."""
        found: dict[str, list[int]] = ray.get(self._runner.processes.remote())
        return found

    def close(self) -> None:
        """End all that is up; does nothing where that is done."""
        if self._runner is None:
            return
        try:
            ray.get(self._runner.close.remote(), timeout=END_S)
        except RayError as error:
            logger.warning("the training's process did not end by itself: %s", last_line(error))
        finally:
            if (timeline := self._first.ray_kwargs.get("timeline_json_file")) is not None:
                ray.timeline(filename=timeline)
            self._runner, self._usable = None, False
            _end_queue()
            _leave(self._folder)

    def __enter__(self) -> Self:
        """Return the session itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _recovered(self) -> bool:
        try:
            return bool(ray.get(self._runner.recover.remote(), timeout=RECOVER_S))
        except (RayError, GetTimeoutError) as error:
            logger.warning("the session is lost with its training: %s", last_line(error))
            return False


class _Starting:
    """Stands where `run_ppo` wants the class of its actor, and keeps the one that it makes."""

    runner: Any = None

    def options(self, **options: Any) -> _Starting:
        """verl asks for options for a profiler, which are for a whole job; the actor has them too."""
        self._options = options
        return self

    def remote(self) -> Any:
        """Start the actor."""
        made: Any = ray.remote(SessionRunner)
        self.runner = made.options(**getattr(self, "_options", {})).remote()
        return self.runner


def end_actors(actors: Sequence[Any], timeout_s: float = END_S) -> None:
    """Kill actors and wait until they are gone, so that none of them writes anything any more."""
    for actor in actors:
        ray.kill(actor)
    deadline = time.monotonic() + timeout_s
    waiting = [actor.__ray_ready__.remote() for actor in actors]
    _, left = (
        ray.wait(waiting, num_returns=len(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if waiting
        else ([], [])
    )
    if left:
        raise TrainingFailed(
            f"{len(left)} of {len(actors)} rollout workers are still there {timeout_s:.0f} s after SIGKILL"
        )


def keep_rows_with_trainers(config: DictConfig) -> None:
    """Have TransferQueue store no rows on nodes that have no CPU in Ray's books: they are for rollouts, and may go."""
    storage = "transfer_queue.backend.SimpleStorage.required_node_resource"
    if OmegaConf.select(config, storage) is None:
        OmegaConf.update(config, storage, "CPU", force_add=True)


def _own_id(_: Any) -> int:
    return os.getpid()


def _resolve(config: DictConfig) -> None:
    with open_dict(config):
        config.transfer_queue.enable = True
    OmegaConf.resolve(config)


def _copy(config: DictConfig) -> DictConfig:
    copy: DictConfig = OmegaConf.create(OmegaConf.to_container(config))  # type: ignore[assignment]
    return copy


def _validate(config: DictConfig) -> None:
    try:
        with redirect_stdout(StringIO()):  # where it says that nothing is wrong
            validate_config(
                config, use_reference_policy=need_reference_policy(config), use_critic=trains_critic(config)
            )
    except (AssertionError, ValueError) as error:
        raise ConfigError(f"verl: {' '.join(str(error).split())}") from error


def _found_weights(config: DictConfig, settings: Settings, named: Path | None) -> Weights | None:
    path = named if named is not None else settings.trainer.weights
    if path is None:
        return None
    found = weights_at(path)
    check_architecture(found, config.actor_rollout_ref.model)
    return found


def _failed(settings: Settings, error: Exception) -> TrainingFailed:
    """Return what is to be raised for an error of Ray's, and write the trainer's traceback."""
    if isinstance(error, TrainingFailed):
        return error
    if not isinstance(error, RayTaskError):
        return TrainingFailed(f"the trainer's process was lost: {last_line(error)}")
    cause = error.cause if isinstance(error.cause, BaseException) else error
    logger.debug("the trainer's traceback", exc_info=error)
    path = settings.experiment_dir / "logs" / "trainer_error.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(error), encoding="utf-8")
    return TrainingFailed(f"{type(cause).__name__}: {last_line(cause)} (traceback: {path})")


def _leave(folder: Path) -> None:
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def _end_queue() -> None:
    """Wait until TransferQueue's controller is gone, which has one name for all jobs of a cluster: the next session
    would take it for its own."""
    deadline = time.monotonic() + QUEUE_S
    while time.monotonic() < deadline:
        try:
            ray.get_actor("TransferQueueController", namespace="transfer_queue")
        except (ValueError, RayError):
            return
        time.sleep(0.1)


def _wait_for_gpus(wanted: int, device: str) -> None:
    """Wait until Ray has taken back what a session before this one had; raises TrainingFailed where there is too
    little."""
    if (known := ray.cluster_resources().get("GPU", 0)) < wanted:
        stands = " (without a GPU too: one for each rank)" if device == "cpu" else ""
        raise TrainingFailed(
            f"the Ray cluster has {known:.0f} GPUs in its books, the training wants {wanted}: start the trainer's "
            f"nodes with `ray start --num-gpus=N`{stands}, or see trainer.nnodes and trainer.n_gpus_per_node"
        )
    deadline = time.monotonic() + FREE_S
    while (free := ray.available_resources().get("GPU", 0)) < wanted:
        if time.monotonic() >= deadline:
            raise TrainingFailed(
                f"{free:.0f} of the {wanted} GPUs that a training needs are free in Ray: end what holds them"
            )
        time.sleep(0.1)


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
            if settings.ray.address:
                # Of this node; another one need not have that folder.
                ray_init.runtime_env.env_vars.pop("TMPDIR", None)
            return
        ray_init.num_cpus = settings.ray.num_cpus
        ray_init.num_gpus = settings.ray.num_gpus
        ray_init.include_dashboard = False
        if settings.ray.object_store_memory:
            ray_init.object_store_memory = settings.ray.object_store_memory
