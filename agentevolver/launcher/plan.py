"""Launch plan: the services and the main job of a run. Making a plan starts and writes nothing."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentevolver.config.checks import Resolved
from agentevolver.config.devices import DESCRIPTIONS, VISIBLE
from agentevolver.config.load import resolved_tree
from agentevolver.config.trees import one_line, paths, select
from agentevolver.launcher.experiment import Presence
from agentevolver.launcher.logs import ray_folder
from agentevolver.launcher.options import DEFAULT_TARGET, LOGVIEW, Options
from agentevolver.launcher.records import RunRegistry, temp_dir_for
from agentevolver.launcher.stack import (
    JobSpec,
    Launch,
    Services,
    ServiceSpec,
    environment_service,
    fork_server_service,
    is_described,
    logview_service,
    ray_head,
    user_service,
)
from agentevolver.llm.settings import Role
from agentevolver.trainer.preload import SOCKET, python_of
from agentevolver.utils import net, recipes
from agentevolver.utils.errors import UsageError
from agentevolver.utils.secrets import SECRETS, masked_tree, secrets_in
from agentevolver.utils.web.access import is_local
from env_service.parameters import paths_in
from env_service.registry import RegistryError, known_environments, resolve

HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables for the Hugging Face token, in the order that `huggingface_hub` reads them."""


@dataclass(frozen=True)
class Plan:
    """Services and main job of one launch, and the files that the launcher writes for them."""

    run_id: str
    device: str
    experiment_dir: Path
    config: Mapping[str, Any]
    services: tuple[ServiceSpec, ...]
    job: JobSpec | None
    temp_dir: Path | None
    token: Path | None
    dashboard: str | None
    reused: tuple[str, ...]
    secrets: tuple[str, ...] = ()
    """Environment variables that reach the run's processes as files (`agentevolver.utils.secrets`)."""
    shared_files: bool = False
    """Whether other users may read the run's files, if the umask allows it."""

    @cached_property
    def config_text(self) -> str:
        """Resolved configuration as yaml, with secrets left as interpolations."""
        return as_yaml(self.config)

    @property
    def config_path(self) -> Path:
        return self.experiment_dir / "config.yaml"

    @property
    def logs(self) -> Path:
        return self.experiment_dir / "logs"

    def describe(self, *, commands: bool = False) -> str:
        """Return the plan as text.

        Args:
            commands: include the command of each service and of the main job.
        """
        lines = [f"run {self.run_id} on {self.device}", f"writes to {self.experiment_dir}"]
        if model := select(self.config, "actor_rollout_ref.model"):
            attention = select(model, "override_config.attn_implementation")
            gpus = select(self.config, "trainer.n_gpus_per_node")
            lines.append(
                f"trains {model['path']}: {DESCRIPTIONS[self.device]}, attention {attention}, {gpus} device(s) a node"
            )
        lines += self._sizes() if self.job is not None else []
        lines += [f"uses {text}" for text in self.reused]
        for spec in self.services:
            lines += [f"starts {spec.name}: {spec.title}", *([f"    {spec.command}"] if commands else [])]
        if self.job is not None:
            module = " ".join(self.job.argv[1:3])
            lines += ["runs the main job:", f"    {self.job.command}"] if commands else [f"runs {module}"]
        return "\n".join(lines)

    def _sizes(self) -> list[str]:
        """Return lines on the amount of training and validation, or none if the configuration lacks the sizes."""

        def told(path: str) -> Any:
            return select(self.config, path)

        steps, epochs = told("trainer.total_training_steps"), told("trainer.total_epochs")
        batch, n = told("data.train_batch_size"), told("actor_rollout_ref.rollout.n")
        if batch is None or n is None:
            return []
        how_long = f"{steps} steps" if steps is not None else f"{epochs} epochs"
        lines = [f"{how_long} of {batch} tasks x {n} rollouts"]
        splits, val_n = told("data.val_splits"), told("actor_rollout_ref.rollout.val_kwargs.n")
        often, save = told("trainer.test_freq"), told("trainer.save_freq")
        validated = f"validates {', '.join(splits)} x {val_n}" if splits else "validates nothing"
        lines.append(f"{validated}, every {often} steps; a checkpoint every {save} steps")
        return lines


def new_run_id() -> str:
    """Return a new run id: the time and a random suffix."""
    return f"{datetime.now():%y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def make_plan(options: Options, configuration: Resolved, presence: Presence, registry: RunRegistry) -> Plan:
    """Plan the processes in order: Ray, environment service, recipes' services, user's services, page of the run, main
    job.

    Args:
        presence: owner of the environment service.

    Raises:
        UsageError: a `--with-NAME` cannot be served.
        LaunchError: no port is free.
    """
    run_id, folder = new_run_id(), configuration.experiment_dir.resolve()
    logs = folder / "logs"
    registered, own = _split_services(options)
    # Without a run and without environments, the services of recipes and of the user need no cluster.
    alone = options.conf is None and not registered
    env = _environment(configuration, options)
    config = configuration.config
    target = _target(options, configuration) if options.conf is not None else None
    described = {name for name in own if is_described(name)}
    asking = [recipe.asks.get(name, ()) for recipe in recipes.recipes().values() for name in {*own} - described]
    roles = (*configuration.settings.roles, *(Role(role) for roles in asking for role in roles))
    launch = Launch(configuration.settings, config, target, options.services, roles)
    added: list[Services] = recipes.called("services", launch)
    for one in added:
        env |= one.env
        config = OmegaConf.merge(config, one.config)  # type: ignore[assignment]
    hidden = tuple(secrets_in(os.environ, _key_variables(configuration.config)))
    kept = registry.secrets_path(run_id).resolve()
    if token := next((name for name in HUB_TOKENS if name in hidden), None):
        # huggingface_hub prefers the variable over its token file, so the user's own file is replaced too.
        env["HF_TOKEN_PATH"] = str(kept / token)
    cluster = _Cluster("", env) if alone else _cluster(options, configuration, run_id, logs, registry, env)
    services, reused = [*cluster.services], [*cluster.reused]
    env = cluster.env | ({SECRETS: str(kept)} if hidden else {})
    if presence.whose is not None and not alone:
        reused.append(f"the environment service at {configuration.env_service.env_url}, {presence.whose}")
    elif not alone:
        names, modules = served_names(options, configuration), options.env_modules
        service = environment_service(
            configuration.env_service, names, modules=modules, ray_address=cluster.address, logs=logs, env=env
        )
        named = paths_in([*map(asdict, configuration.settings.environments), *(one.paths for one in added)])
        services.append(replace(service, argv=(*service.argv, *(f"--path={path}" for path in dict.fromkeys(named)))))
    of_recipes = [_of_run(spec, env) for one in added for spec in one.specs]
    own = [name for name in own if name not in {spec.name for spec in of_recipes}]
    known = known_names(options)
    services += [*of_recipes, *(user_service(name, known=known, logs=logs, env=env) for name in own)]
    if LOGVIEW in options.services:
        services.append(logview_service(folder, logs=logs, env=env))
    return Plan(
        run_id=run_id,
        device=configuration.device,
        experiment_dir=folder,
        config=resolve_config(config),
        services=tuple(
            spec if spec.name in described else replace(spec, withheld=(*hidden, *spec.withheld)) for spec in services
        ),
        job=_main_job(options, configuration, folder, env) if options.conf is not None else None,
        temp_dir=cluster.temp_dir,
        token=cluster.token,
        dashboard=cluster.dashboard,
        reused=tuple(reused),
        secrets=hidden,
        shared_files=bool(select(configuration.config, "experiment.shared_files")),
    )


def check_services(options: Options, configuration: Resolved) -> None:
    """Raise UsageError if an environment's name is unknown. The message suggests the nearest known name."""
    service = configuration.env_service
    registered, _ = _split_services(options)
    if options.conf is None and not registered:
        return
    if not is_local(service.env_url):
        if registered:
            raise UsageError(
                f"--with-{registered[0]} starts a service here, but env_service.env_url={service.env_url} is elsewhere"
            )
        return
    try:
        resolve(served_names(options, configuration), options.env_modules)
    except RegistryError as error:
        raise UsageError(f"env_service.env_type: {error}") from error


def known_names(options: Options) -> tuple[str, ...]:
    """Return the names of the environments that can be served, sorted. Raises UsageError."""
    try:
        return tuple(sorted(known_environments(options.env_modules)))
    except RegistryError as error:
        raise UsageError(str(error)) from error


def resolve_config(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as a plain tree. `oc.env` interpolations are kept, so secrets do not appear in it.

    Raises:
        UsageError: an interpolation cannot be resolved.
    """
    try:
        return resolved_tree(config)
    except OmegaConfBaseException as error:
        raise UsageError(one_line(error)) from error


def as_yaml(tree: Mapping[str, Any]) -> str:
    """Return a configuration as yaml that reads back the same."""
    # OmegaConf quotes a string such as "1e-6" that its own loader would read as a number.
    return OmegaConf.to_yaml(OmegaConf.create(dict(tree)))


def masked(tree: Mapping[str, Any]) -> str:
    """Return a configuration as yaml without secrets, for the screen and for records."""
    return as_yaml(masked_tree(tree))


@dataclass(frozen=True)
class _Cluster:
    address: str
    env: dict[str, str]
    services: tuple[ServiceSpec, ...] = ()
    reused: tuple[str, ...] = ()
    temp_dir: Path | None = None
    token: Path | None = None
    dashboard: str | None = None


def _cluster(
    options: Options, configuration: Resolved, run_id: str, logs: Path, registry: RunRegistry, env: dict[str, str]
) -> _Cluster:
    """Describe the Ray cluster to join or to start, with the fork server of its workers.

    Raises:
        UsageError: `ray.preload` is on, and the device does not allow forking.
        LaunchError: no port is free.
    """
    section, preloads = configuration.ray, configuration.ray.preload and options.conf is not None
    if preloads and configuration.device != "cpu":
        raise UsageError(
            f"ray.preload=true on {configuration.device}: importing torch's compiler and vLLM sets up the CUDA driver, "
            "which does not work in a forked process; set it to false"
        )
    if (address := section.address) is not None:
        return _Cluster(address, env | {"RAY_ADDRESS": address}, reused=(f"the Ray cluster at {address}",))
    temp_dir, token = temp_dir_for(run_id), None
    env = env | net.ON_LOOPBACK | {"TMPDIR": str(temp_dir / "tmp")}
    if "RAY_AUTH_MODE" not in os.environ:
        # Loopback keeps other machines out, the token other users of this one.
        token = registry.token_path(run_id).resolve()
        env = env | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    services: tuple[ServiceSpec, ...] = ()
    if preloads:
        socket = temp_dir / "forks"
        services, env = (fork_server_service(socket, logs=logs, env=env),), env | {SOCKET: str(socket)}
    head = ray_head(section, temp_dir=ray_folder(temp_dir), logs=logs, env=env)
    # On a CPU Ray's GPUs are logical ones, which it would look up in the variable.
    withheld = (VISIBLE,) if configuration.device == "cpu" else ()
    specs = tuple(replace(spec, withheld=withheld) for spec in (*services, head.spec))
    return _Cluster(head.address, env | {"RAY_ADDRESS": head.address}, specs, (), temp_dir, token, head.dashboard)


def _of_run(spec: ServiceSpec, env: Mapping[str, str]) -> ServiceSpec:
    """Return a recipe's service with the run's environment variables; the service's own variables win."""
    argv = (python_of(env), *spec.argv[1:]) if spec.preloaded else spec.argv
    return replace(spec, argv=argv, env={**env, **spec.env})


def registered_services(options: Options) -> list[str]:
    """Return the environments among the services of `--with-NAME`."""
    return _split_services(options)[0]


def served_names(options: Options, configuration: Resolved) -> tuple[str, ...]:
    """Return the environments that the launch's service serves: the run's own, recipes' and those of `--with-NAME`."""
    registered = registered_services(options)
    own: tuple[str, ...] = ()
    if options.conf is not None:
        served = [name for names in recipes.called("serves", configuration.settings) for name in names]
        own = (*configuration.env_service.env_types, *served)
    return tuple(dict.fromkeys((*own, *registered)))


def _split_services(options: Options) -> tuple[list[str], list[str]]:
    known = known_names(options)
    registered = [name for name in options.services if name in known]
    return registered, [name for name in options.services if name not in known and name != LOGVIEW]


def _environment(configuration: Resolved, options: Options) -> dict[str, str]:
    """Return the variables that every process of the run gets in addition to the launcher's own."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    env = {**configuration.env, "PATH": path, "PYTHONUNBUFFERED": "1"}
    if options.debug_tags is not None:
        env |= {
            "RAY_DEBUG_POST_MORTEM": "1",
            "RAY_record_task_actor_creation_sites": "true",
            "DEBUG_TAGS": options.debug_tags,
        }
    return env


def _key_variables(config: DictConfig) -> set[str]:
    """Return the environment variables that the configuration names as API keys (`api_key_env`)."""
    tree = OmegaConf.to_container(config, resolve=False)
    return {str(select(tree, path)) for path in paths(tree) if path.rpartition(".")[2] == "api_key_env"}


def _target(options: Options, configuration: Resolved) -> str:
    return options.target or next(iter(recipes.called("main", configuration.settings)), DEFAULT_TARGET)


def _main_job(options: Options, configuration: Resolved, folder: Path, env: Mapping[str, str]) -> JobSpec:
    shown = dict(env)
    if sys.stdout.isatty():
        # Its output goes through a pipe, so it cannot see the terminal itself.
        shown |= {"FORCE_COLOR": "1", "COLUMNS": str(shutil.get_terminal_size().columns)}
    target = _target(options, configuration)
    argv = (python_of(env), "-m", target, "--config", str(folder / "config.yaml"))
    return JobSpec(name="main", argv=argv, cwd=Path.cwd(), log=folder / "logs" / "main.log", env=shown)
