"""The configuration, checked before anything is started, and read through types.

`load` composes the layers (`agentevolver.config.load`) into one `DictConfig`; `Settings` is the typed view of what this
project reads of it. Nothing here imports torch, verl or ray, so a mistake is answered within seconds and with one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from agentevolver.config.agent import check_agent
from agentevolver.config.devices import Device, attention_problem, prefill_problem
from agentevolver.config.load import (
    compose_defaults,
    merge,
    one_line,
    paths,
    read_overrides,
    read_yaml,
    refuse_unknown,
    select,
    take_agent,
    take_device,
)
from agentevolver.config.loss_modes import check_loss
from agentevolver.config.schema import (
    TEACHER_ENVIRONMENTS,
    TEACHER_NOTES,
    EnvServiceSettings,
    RaySettings,
    RolloutSettings,
    Section,
    Settings,
    SizeSettings,
    own_places,
    place_of,
)
from agentevolver.config.verl_keys import Layer
from agentevolver.config.verl_keys import check as check_verl_keys
from agentevolver.errors import ConfigError
from agentevolver.flows import checked_flow
from agentevolver.llm.settings import OFFLINE, POLICY, Role, TeacherSettings
from agentevolver.message_logs import LogError, find_logs
from agentevolver.utils.secrets import secret
from context_manager.registry import checked_template
from experience_manager.guide import guided_count, validation_rollouts
from experience_manager.settings import PRESETS, Preset, verl_overrides
from task_manager.settings import WITHOUT_JUDGE, file_of

# Keys of verl that `agentevolver.run.main` fills: the experiment's own files of tasks.
_WRITTEN_BY_THE_RUN = ("data.train_files", "data.val_files")
# Roles that are asked to make tasks, and nothing else.
MAKING = (Role.EXPLORER, Role.SYNTHESISER, Role.VERIFIER)


@dataclass(frozen=True)
class Resolved:
    """A configuration that may be run: the composed tree, and its typed view."""

    config: DictConfig
    settings: Settings

    @property
    def experiment_dir(self) -> Path:
        """Where everything of the run is written."""
        return self.settings.experiment_dir

    @property
    def device(self) -> Device:
        """The device group that was chosen."""
        return self.settings.device

    @property
    def env_service(self) -> EnvServiceSettings:
        """The section `env_service`."""
        return self.settings.env_service

    @property
    def ray(self) -> RaySettings:
        """The section `ray`."""
        return self.settings.ray

    @property
    def teacher(self) -> TeacherSettings | None:
        """The built-in teacher, if it plays a role of this run."""
        settings = self.settings
        return (
            settings.llm.teacher
            if any(settings.llm.endpoint(role).base_url == OFFLINE for role in settings.roles)
            else None
        )

    @property
    def experience_backend(self) -> str:
        """Where the pool of experience is: embedded, or a service (http)."""
        return self.settings.exp_manager.backend

    @property
    def experience_url(self) -> str:
        """Where that service is."""
        return self.settings.exp_manager.reme.base_url

    def summarising_teacher(self) -> TeacherSettings | None:
        """Return the built-in teacher if it summarises for an experience service that is started beside the run.

        Raises:
            ConfigError: nobody could summarise for it.
        """
        _check_role(self.settings, Role.SUMMARISER, outside_rollouts=True)
        llm = self.settings.llm
        return llm.teacher if llm.endpoint(Role.SUMMARISER).base_url == OFFLINE else None

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that every process of the run needs."""
        return {
            **self.settings.device_env,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "TENSORBOARD_DIR": str(self.experiment_dir.resolve() / "tensorboard"),
        }


def load(conf: Path | None = None, overrides: list[str] | None = None) -> Resolved:
    """Compose and check a configuration.

    Args:
        conf: the experiment's yaml; None composes the defaults alone.
        overrides: `key=value` items of the command line, the strongest layer. `device=auto|cpu|cuda|cuda_small` chooses
            the device group.

    Raises:
        ConfigError: with one line that says what to change.
    """
    experiment = read_yaml(conf) if conf is not None else {}
    command_line = read_overrides(overrides or [])
    device, preset = take_device(experiment, command_line), verl_overrides(_preset(experiment, command_line))
    config, defaults = compose_defaults(device), compose_defaults(device)
    for path, value in preset.items():
        OmegaConf.update(config, path, value)
        OmegaConf.update(defaults, path, value)
    for own, source in ((experiment, str(conf)), (command_line, "the command line")):
        take_agent(own, source)
    layers = (Layer(experiment, str(conf)), Layer(command_line, "the command line"))
    for layer in layers:
        refuse_unknown(layer.content, config, layer.source)
        merge(config, layer.content, layer.source)
    _check_references(config, (experiment, command_line))
    for key in _WRITTEN_BY_THE_RUN:
        if OmegaConf.select(config, key) is not None:
            raise ConfigError(
                f"{key} is set by the run: tasks come from the environment's splits (data.train_split, "
                "data.val_splits); remove it"
            )
    name = str(config.trainer.experiment_name or "read_yaml_name")
    if name == "read_yaml_name":
        name = conf.stem if conf is not None else "default"
    config.trainer.experiment_name = name.replace("|", "-").replace("/", "-")
    check_verl_keys(layers, config, defaults, own_places())
    settings = _typed(config)
    if settings.env_service.is_mixture:
        _check_read_by_a_mixture(layers, defaults)
    return Resolved(config, settings)


def _check_read_by_a_mixture(layers: Sequence[Layer], defaults: DictConfig) -> None:
    """Refuse changes of keys of verl's loader, which does not draw the epochs of several environments."""
    for key, instead in (("shuffle", "task_manager.mixture.shuffle"), ("train_max_samples", "train_filter")):
        for layer in layers:
            default = OmegaConf.select(defaults, f"data.{key}")
            if select(layer.content, f"data.{key}", default) != default:
                raise ConfigError(
                    f"{layer.source}: `data.{key}` is not read where epochs are of several environments: write "
                    f"{instead}"
                )


def _check_references(config: DictConfig, layers: Sequence[Mapping[str, Any]]) -> None:
    """Resolve what the layers refer to, verl's keys included, which the typed view does not look at."""
    for layer in layers:
        for path in paths(layer):
            value = select(layer, path)
            if not isinstance(value, Mapping) and "${" in str(value):
                try:
                    _resolved(config, path)
                except OmegaConfBaseException as error:
                    raise ConfigError(one_line(error)) from error


def _preset(experiment: Mapping[str, Any], command_line: Mapping[str, Any]) -> Preset:
    """Return the preset of the experience manager that the layers choose; one that does not exist is refused later, by
    name."""
    chosen = select(command_line, "exp_manager.preset") or select(experiment, "exp_manager.preset")
    return chosen if chosen in PRESETS else "default"


def from_config(config: DictConfig) -> Settings:
    """Return the typed view of an already composed configuration (a run's `config.yaml`)."""
    return _typed(config)


def for_verl(config: DictConfig) -> DictConfig:
    """Return a resolved copy for verl: sections that it reads into dataclasses hold its keys alone, ours stand in
    `agentevolver`."""
    copy: DictConfig = OmegaConf.create(OmegaConf.to_container(config, resolve=True))  # type: ignore[assignment]
    for field in RolloutSettings.model_fields:
        section, _, key = place_of(f"rollout.{field}").rpartition(".")
        OmegaConf.select(copy, section).pop(key)
    settings = _typed(config)
    if (
        settings.exp_manager.kl_to == "old"
    ):  # our loss reads the old log-probs; verl would load a reference and run it for nobody
        copy.actor_rollout_ref.actor.use_kl_loss = False
    if (
        settings.trainer.deterministic and settings.device != "cpu"
    ):  # where the kernels are so only if they are asked for it
        for section in ("rollout", "actor.fsdp_config", "ref.fsdp_config"):
            OmegaConf.update(copy.actor_rollout_ref, f"{section}.full_determinism", True)
    copy.agentevolver = settings.model_dump(mode="json")
    return copy


def _typed(config: DictConfig) -> Settings:
    try:
        settings = Settings.model_validate(_gather(config))
    except ValidationError as error:
        first = error.errors()[0]
        location = [str(part) for part in first["loc"]]
        place = place_of(".".join(location))
        # A section's own validators say what they found; where a key might stand by mistake, nothing is shown.
        found = (
            ""
            if isinstance(first["input"], dict | BaseModel) or location[-1] == "api_key_env"
            else f", found {first['input']!r}"
        )
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{place}: {message[0].lower()}{message[1:]}{found}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    _cross_check(settings.sizes)
    for look in (attention_problem, prefill_problem):
        if problem := look(lambda path: _resolved(config, path)):
            raise ConfigError(problem)
    _check_rollout(settings.rollout)
    _check_environments(settings)
    _check_tasks(settings)
    _check_cold_start(settings, config)
    _check_guidance(settings)
    _check_guided_training(settings, config)
    check_loss(config, boosts=settings.exp_manager.strips and settings.exp_manager.selective_boosting)
    _check_roles(settings)
    if settings.attribution.active and OmegaConf.select(config, "algorithm.use_kl_in_reward"):
        raise ConfigError(
            "algorithm.use_kl_in_reward = true: attribution reads the outcome alone, a penalty in the reward would be "
            "lost; use "
            "actor_rollout_ref.actor.use_kl_loss"
        )
    return settings


def _gather(config: DictConfig) -> dict[str, Any]:
    """Return what `Settings` is made of. Only that is resolved: to resolve verl's own keys too takes ten times as
    long."""
    tree: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            tree[name] = {key: _resolved(config, place_of(f"{name}.{key}")) for key in section.model_fields}
        else:
            tree[name] = _resolved(config, place_of(name))
    return tree


def _resolved(config: DictConfig, path: str) -> Any:
    value = OmegaConf.select(config, path)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _check_rollout(rollout: RolloutSettings) -> None:
    """Refuse keys that the chosen template or flow would not read; a class of the user's own says itself which ones it
    reads."""
    if rollout.sample_choice is not None and rollout.max_samples_per_trajectory is None:
        raise ConfigError(
            f"{place_of('rollout.sample_choice')} has no effect without max_samples_per_trajectory: set that, or "
            "remove it"
        )
    if rollout.tool_format != "none" and rollout.observation_role is not None:
        raise ConfigError(
            f"{place_of('rollout.observation_role')} = {rollout.observation_role}: with tool_format = "
            f"{rollout.tool_format} a tool's answer is of the role tool and all else of the user's: remove one of the "
            "keys"
        )
    if ":" not in rollout.context_template:
        checked_template(rollout)
    if ":" not in rollout.agent_flow:
        checked_flow(rollout)
    check_agent(
        rollout, template=rollout.context_template, flow=rollout.agent_flow, observation_role=rollout.observation_role
    )


def _check_environments(settings: Settings) -> None:
    """Refuse environments that nothing would be done with, and questions about ones that are not trained on."""
    section, several = settings.task_manager, settings.env_service.is_mixture
    if not any(environment.val_splits for environment in settings.environments):
        raise ConfigError("env_service.environments: val_splits is [] for all of them, so nothing would be validated")
    for name, own in settings.env_service.environments.items():
        if own.native_tools is not None and settings.rollout.tool_format == "none":
            raise ConfigError(
                f"env_service.environments.{name}.native_tools has no effect while {place_of('rollout.tool_format')} = "
                "none: remove it, or set that"
            )
    for environment in settings.environments:
        if not environment.weight and not environment.val_splits:
            raise ConfigError(
                f"env_service.env_type.{environment.env_type} = 0, and it has no val_splits: give it one of them, or "
                "remove it"
            )
    if section.env_types is None:
        return
    if not several or not section.mixture.needs_synthetic:
        why = "there are no synthetic tasks" if several else "env_service.env_type names one environment"
        raise ConfigError(f"task_manager.env_types has no effect: {why}; remove it")
    trained = [environment.env_type for environment in settings.environments if environment.weight > 0]
    for name in section.env_types:
        if name not in trained:
            raise ConfigError(
                f"task_manager.env_types: {name} is not trained on; environments that are: {', '.join(trained)}"
            )


def _check_questioned(settings: Settings) -> None:
    """Refuse, of several environments, tasks that would not be there, and what fits one environment alone."""
    section = settings.task_manager
    for environment in settings.environments:
        name = environment.env_type
        if name not in settings.questioned and environment.weight > 0 and not section.mixture.use_original_tasks:
            raise ConfigError(
                f"task_manager.mixture.use_original_tasks = false leaves nothing of {name}, which "
                "task_manager.env_types does not name: name it there, or give it the weight 0"
            )
    if len(settings.questioned) > 1:
        for key in ("env_profile", "action_format"):
            if (value := getattr(section, key)) is not None:
                raise ConfigError(
                    f"task_manager.{key} = {value} is one environment's, and tasks are made for "
                    f"{', '.join(settings.questioned)}: remove it, or name one in task_manager.env_types"
                )
    for name in settings.questioned if section.n == 0 else ():
        if not (path := file_of(section.train_data_path, name)).exists():
            raise ConfigError(
                f"task_manager.mixture.synthetic_data_ratio = {section.mixture.synthetic_data_ratio:g}, but there is "
                f"no file of synthetic tasks of {name} at {path}: set task_manager.n to 1 or more to make them, or "
                f"leave {name} out of task_manager.env_types"
            )


def _check_cold_start(settings: Settings, config: DictConfig) -> None:
    """Refuse a cold start from nothing, or into adapters."""
    files = settings.cold_start.files
    if not files or (settings.experiment_dir / "cold_start" / "done.json").exists():
        return
    if OmegaConf.select(config, "actor_rollout_ref.model.lora_rank"):
        raise ConfigError(
            "cold_start trains the whole model, and actor_rollout_ref.model.lora_rank asks for adapters: set it to 0, "
            "or fine-tune before and give the result as actor_rollout_ref.model.path"
        )
    try:
        find_logs(files)
    except LogError as error:
        raise ConfigError(f"cold_start.files: {error}") from error


def _check_tasks(settings: Settings) -> None:
    """Refuse tasks that would not be there, and graders that could not grade what is trained on."""
    section = settings.task_manager
    mixture, grader = section.mixture, section.grader
    if not mixture.needs_synthetic:
        if section.curriculum.synthesize_every_epochs > 0:
            raise ConfigError(
                "task_manager.curriculum.synthesize_every_epochs makes tasks that nobody trains on: set "
                "task_manager.mixture.synthetic_data_ratio above 0"
            )
    elif settings.env_service.is_mixture:
        _check_questioned(settings)
    elif section.n == 0 and not section.train_data_path.exists():
        raise ConfigError(
            f"task_manager.mixture.synthetic_data_ratio = {mixture.synthetic_data_ratio:g}, but there is no file of "
            "synthetic tasks at "
            f"task_manager.train_data_path = {section.train_data_path}: set task_manager.n to 1 or more to make them"
        )
    if mixture.use_original_tasks and (
        grader.original_grader in ("state", "state-llm") or "-gt" in grader.original_grader
    ):
        raise ConfigError(
            f"task_manager.grader.original_grader = {grader.original_grader}: the environment's own tasks come "
            "without a reference, write "
            "env or a judge that needs none (llm, llm-binary, avg-llm)"
        )
    chosen = "fallback_grader" if grader.synthetic_grader == "auto" else "synthetic_grader"
    name = getattr(grader, chosen)
    if mixture.needs_synthetic and (name == "env" or (name in ("state", "state-llm") and chosen == "fallback_grader")):
        raise ConfigError(
            f"task_manager.grader.{chosen} = {name} cannot grade such tasks, name a judge (llm-binary-gt-no_constraint)"
        )
    if (
        mixture.needs_synthetic
        and name == "state-llm"
        and not grader.fallback_grader.removeprefix("avg-").startswith("llm")
    ):
        raise ConfigError(
            "task_manager.grader.synthetic_grader = state-llm asks the judge that "
            "task_manager.grader.fallback_grader names, and that is "
            f"{grader.fallback_grader}: name a judge (llm-binary-gt-no_constraint)"
        )


def _check_guidance(settings: Settings) -> None:
    """Refuse guidance that no rollout would be given."""
    section, sizes = settings.exp_manager, settings.sizes
    for mode, key, n, guided in (
        (
            section.train_rollout_mode,
            "rollout.n",
            sizes.n,
            guided_count(sizes.n, "mixed", section.rollout_ratio, section.ratio_rounding),
        ),
        (section.val_rollout_mode, "rollout.val_kwargs.n", sizes.val_n, validation_rollouts(section, sizes.val_n)[1]),
    ):
        if mode == "mixed" and guided == 0:
            raise ConfigError(
                f"exp_manager.rollout_ratio = {section.rollout_ratio:g} guides none of the actor_rollout_ref.{key} = "
                f"{n} rollouts of a "
                "task: set it higher"
            )
    if section.guides and not section.distils and section.backend == "embedded":
        store = section.store or settings.experiment_dir / "experience.sqlite"
        if not store.exists():
            raise ConfigError(
                f"exp_manager guides rollouts, but nothing fills the pool and there is none at {store}: set "
                "init_exp_before_training, or "
                "reme.enable_summarizer and reme.updated_freq, or give exp_manager.store"
            )


def _check_guided_training(settings: Settings, config: DictConfig) -> None:
    """Refuse what verl would do to guided rollouts that is not meant."""
    section = settings.exp_manager
    if section.strips and OmegaConf.select(config, "algorithm.rollout_correction.bypass_mode"):
        raise ConfigError(
            "algorithm.rollout_correction.bypass_mode = true takes the log-probs of the guided prompt for those of "
            "the one that is trained "
            "on: set it to false, or exp_manager.train_sample_mode to allkeep"
        )
    if section.kl_to == "old" and not OmegaConf.select(config, "actor_rollout_ref.actor.use_kl_loss"):
        raise ConfigError(
            "exp_manager.kl_to = old has no effect without actor_rollout_ref.actor.use_kl_loss: set that, or remove "
            "the key"
        )
    if (section.init_exp_before_training or section.scout.split) and OmegaConf.select(
        config, "algorithm.filter_groups.enable"
    ):
        raise ConfigError(
            "algorithm.filter_groups.enable = true would filter the rollouts that fill the pool too: use one of them"
        )
    trainer = config.trainer
    if section.scout.split and not (trainer.test_freq > 0 or trainer.get("val_only")):
        raise ConfigError(
            "exp_manager.scout.split has no effect while trainer.test_freq is not above 0: there is no last validation"
        )


def _check_roles(settings: Settings) -> None:
    """Refuse roles that nobody can play, before anything is started."""
    for role in settings.roles:
        _check_role(settings, role, outside_rollouts=role in settings.roles_outside_rollouts)


def _check_role(settings: Settings, role: Role, *, outside_rollouts: bool) -> None:
    endpoint = settings.llm.endpoint(role)
    notes_alone = role is Role.SUMMARISER and not outside_rollouts and not settings.exp_manager.asks_summariser
    known = TEACHER_NOTES if notes_alone else TEACHER_ENVIRONMENTS
    asked = _asked_about(settings, role)
    unknown = [name for name in asked if name not in known]
    if endpoint.base_url == OFFLINE and unknown:
        verb = "names" if settings.env_service.is_mixture else "is"
        made = settings.env_service.is_mixture and role in MAKING
        hint = f", or leave {unknown[0]} out of task_manager.env_types" if made else ""
        raise ConfigError(
            f"llm.base_url = offline: as {role.value} the built-in teacher knows the environments {', '.join(known)} "
            "alone, and "
            f"env_service.env_type {verb} {unknown[0]}; name an endpoint for the role {role.value}{hint}"
        )
    if endpoint.base_url == POLICY and outside_rollouts:
        raise ConfigError(
            f"llm.roles.{role.value}.base_url = policy: the role is also asked while no policy is served (before "
            "training, or between "
            "rollouts), name another endpoint"
        )
    if endpoint.key_variable is not None and not secret(endpoint.key_variable):
        raise ConfigError(
            f"the role {role.value} asks {endpoint.base_url}, whose key is missing: set {endpoint.key_variable} in "
            ".env, or "
            "llm.api_key_env: null if it wants none"
        )


def _asked_about(settings: Settings, role: Role) -> tuple[str, ...]:
    """Return the environments that a role must know: who makes tasks, those that tasks are made for."""
    grades = settings.task_manager.grader.original_grader not in WITHOUT_JUDGE
    if settings.questioned and (role in MAKING or (role is Role.JUDGE and not grades)):
        return settings.questioned
    return settings.env_service.env_types


def _cross_check(sizes: SizeSettings) -> None:
    """Refuse combinations that would only fail after the rollouts."""
    needed = sizes.max_prompt_length + sizes.max_response_length
    gpus = sizes.n_gpus_per_node * sizes.nnodes
    rollouts = sizes.train_batch_size * sizes.n
    if needed > sizes.max_model_len:
        raise ConfigError(
            f"data.max_prompt_length + data.max_response_length = {needed} exceeds "
            "actor_rollout_ref.rollout.max_model_len = "
            f"{sizes.max_model_len}: set the latter to {needed}, or one of the former lower"
        )
    if sizes.response_length > sizes.max_response_length:
        raise ConfigError(
            f"actor_rollout_ref.rollout.response_length = {sizes.response_length} exceeds data.max_response_length = "
            f"{sizes.max_response_length}: one reply must fit into the response"
        )
    if sizes.train_batch_size % sizes.ppo_mini_batch_size:
        raise ConfigError(
            f"data.train_batch_size = {sizes.train_batch_size} must be a multiple of "
            "actor_rollout_ref.actor.ppo_mini_batch_size = "
            f"{sizes.ppo_mini_batch_size}"
        )
    if rollouts % gpus:
        raise ConfigError(
            f"data.train_batch_size x actor_rollout_ref.rollout.n = {rollouts} must be a multiple of the {gpus} GPUs"
        )
