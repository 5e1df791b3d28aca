"""Cross-checks: keys that are valid alone but not together."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.agent import check_agent
from agentevolver.config.loss_modes import check_loss
from agentevolver.config.schema import (
    RolloutSettings,
    Settings,
    SizeSettings,
    place_of,
)
from agentevolver.llm.message_logs import LogError, find_logs
from agentevolver.llm.settings import OFFLINE, POLICY, Purpose, Role
from agentevolver.rollout.flows import flow_class
from agentevolver.utils.errors import ConfigError
from agentevolver.utils.secrets import secret
from context_manager.registry import checked_template
from env_service.feedback import FEEDBACK
from experience_manager.guide import guided_count, validation_rollouts
from task_manager.settings import asks_judge, file_of

# Roles that only make tasks.
MAKING = (Role.EXPLORER, Role.SYNTHESISER, Role.VERIFIER)


def check_settings(settings: Settings, config: DictConfig) -> None:
    """Check that settings go together and have an effect.

    Args:
        config: the tree from which `settings` were read.

    Raises:
        ConfigError: one line that says what to change.
    """
    _check_rollout(settings.rollout)
    _check_environments(settings)
    _check_tasks(settings)
    _check_cold_start(settings, config)
    _check_guidance(settings)
    _check_guided_training(settings, config)
    check_loss(
        config,
        boosts=settings.exp_manager.strips and settings.exp_manager.selective_boosting,
        row_clips=bool(settings.trainer.row_clips),
    )
    _check_reward_stages(settings, config)
    for role in settings.roles:
        check_role(settings, role, outside_rollouts=role in settings.roles_outside_rollouts)
    if settings.attribution.active and OmegaConf.select(config, "algorithm.use_kl_in_reward"):
        raise ConfigError(
            "algorithm.use_kl_in_reward = true: attribution uses only the outcome, so the KL penalty would "
            "be lost; use actor_rollout_ref.actor.use_kl_loss"
        )


def _check_rollout(rollout: RolloutSettings) -> None:
    if rollout.sample_choice is not None and rollout.max_samples_per_trajectory is None:
        raise ConfigError(
            f"{place_of('rollout.sample_choice')} has no effect without max_samples_per_trajectory: set that, or "
            "remove it"
        )
    if rollout.tool_format != "none" and rollout.observation_role is not None:
        raise ConfigError(
            f"{place_of('rollout.observation_role')} = {rollout.observation_role}: with tool_format = "
            f"{rollout.tool_format} tool results always have the role tool and other observations the role user: "
            "remove one of the keys"
        )
    # A user's class (package.module:Class) checks its keys itself.
    if ":" not in rollout.context_template:
        checked_template(rollout)
    if ":" not in rollout.agent_flow:
        flow_class(rollout.agent_flow)
    check_agent(
        rollout, template=rollout.context_template, flow=rollout.agent_flow, observation_role=rollout.observation_role
    )


def _check_environments(settings: Settings) -> None:
    """Check that every environment and its settings are used, and that synthetic tasks are for trained environments."""
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
        if environment.val_env_params.get(FEEDBACK, "plain") != "plain":
            raise ConfigError(
                f"val_env_params.{FEEDBACK} = {environment.val_env_params[FEEDBACK]}: validation always uses plain, so "
                "that scores stay comparable; remove it"
            )
        if not environment.weight and not environment.val_splits:
            raise ConfigError(
                f"env_service.env_type.{environment.env_type} = 0 and it has no val_splits, so the environment is "
                "unused: raise the weight, set val_splits, or remove the environment"
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
    """Check the synthetic tasks of several environments."""
    section = settings.task_manager
    for environment in settings.environments:
        name = environment.env_type
        if name not in settings.questioned and environment.weight > 0 and not section.mixture.use_original_tasks:
            raise ConfigError(
                f"task_manager.mixture.use_original_tasks = false leaves {name} without tasks: add it to "
                "task_manager.env_types, which makes synthetic ones, or give it the weight 0"
            )
    if len(settings.questioned) > 1:
        for key in ("env_profile", "action_format"):
            if (value := getattr(section, key)) is not None:
                raise ConfigError(
                    f"task_manager.{key} = {value} suits one environment, but tasks are made for "
                    f"{', '.join(settings.questioned)}: remove the key, or keep one environment in "
                    "task_manager.env_types"
                )
    for name in settings.questioned if section.n == 0 else ():
        if not (path := file_of(section.train_data_path, name)).exists():
            raise ConfigError(
                f"task_manager.mixture.synthetic_data_ratio = {section.mixture.synthetic_data_ratio:g}, but there is "
                f"no file of synthetic tasks of {name} at {path}: set task_manager.n to 1 or more to make them, or "
                f"leave {name} out of task_manager.env_types"
            )


def _check_cold_start(settings: Settings, config: DictConfig) -> None:
    """Refuse a cold start without readable files, or with LoRA adapters."""
    files = settings.cold_start.files
    if not files or (settings.experiment_dir / "cold_start" / "done.json").exists():
        return
    if OmegaConf.select(config, "actor_rollout_ref.model.lora_rank"):
        raise ConfigError(
            "cold_start trains the whole model, and actor_rollout_ref.model.lora_rank asks for adapters: set it to 0, "
            "or fine-tune before and give the result as actor_rollout_ref.model.path"
        )
    try:
        find_logs(settings.cold_start.logs)
    except LogError as error:
        raise ConfigError(f"cold_start.files: {error}") from error


def _check_tasks(settings: Settings) -> None:
    """Refuse missing tasks, and graders that cannot grade the training tasks."""
    section = settings.task_manager
    mixture, grader = section.mixture, section.grader
    if not mixture.needs_synthetic:
        if section.curriculum.synthesize_every_epochs > 0:
            raise ConfigError(
                "task_manager.curriculum.synthesize_every_epochs makes tasks that are never trained on: set "
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
            f"task_manager.grader.original_grader = {grader.original_grader}: the environment's own tasks have no "
            "reference solution; write env, or a judge that needs none (llm, llm-binary, avg-llm)"
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
            "task_manager.grader.synthetic_grader = state-llm needs a judge, but task_manager.grader.fallback_grader = "
            f"{grader.fallback_grader} is none: write one there (llm-binary-gt-no_constraint)"
        )


def _check_guidance(settings: Settings) -> None:
    """Refuse guidance that reaches no rollout."""
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
                f"exp_manager.rollout_ratio = {section.rollout_ratio:g} of actor_rollout_ref.{key} = {n} rollouts "
                "rounds to 0, so no rollout would be guided: set one of them higher"
            )
    if section.guides and not section.distils and section.backend == "embedded":
        store = section.store or settings.experiment_dir / "experience.sqlite"
        if not store.exists():
            raise ConfigError(
                f"exp_manager guides rollouts, but there is no pool at {store} and nothing would fill one: set "
                "init_exp_before_training, or reme.enable_summarizer and reme.updated_freq, or give exp_manager.store"
            )


def _check_guided_training(settings: Settings, config: DictConfig) -> None:
    """Refuse keys with which verl would treat guided rollouts wrongly."""
    section = settings.exp_manager
    if section.strips and OmegaConf.select(config, "algorithm.rollout_correction.bypass_mode"):
        raise ConfigError(
            "algorithm.rollout_correction.bypass_mode = true would use log-probs of the guided prompt for the prompt "
            "without guidance that is trained on: set it to false, or exp_manager.train_sample_mode to allkeep"
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
            "algorithm.filter_groups.enable = true would also filter the rollouts that fill the experience pool: set "
            "it to false, or remove exp_manager.init_exp_before_training and exp_manager.scout"
        )
    trainer = config.trainer
    if section.scout.split and not (trainer.test_freq > 0 or trainer.get("val_only")):
        raise ConfigError(
            "exp_manager.scout.split has no effect while trainer.test_freq is not above 0: there is no last validation"
        )


def _check_reward_stages(settings: Settings, config: DictConfig) -> None:
    """Refuse keys that read the scores before the reward stages have changed them."""
    if not settings.trainer.reward_stages:
        return
    if OmegaConf.select(config, "algorithm.filter_groups.enable"):
        raise ConfigError(
            "algorithm.filter_groups.enable = true drops groups by the grader's scores, before trainer.reward_stages "
            "change them: set it to false, or remove the stages"
        )
    if settings.attribution.active and settings.attribution.adca_grpo.skip_type == "skip_small_adv":
        raise ConfigError(
            "attribution_driven_credit_assignment.adca_grpo.skip_type = skip_small_adv looks at the grader's scores, "
            "and trainer.reward_stages change them afterwards: write none or skip_all_neg, or remove the stages"
        )


def check_role(settings: Settings, role: Role, *, outside_rollouts: bool) -> None:
    """Check that a role has a usable endpoint.

    Args:
        outside_rollouts: the role is also called while no policy is served.

    Raises:
        ConfigError: one line that says what to change.
    """
    endpoint = settings.llm.endpoint(role)
    if endpoint.base_url == OFFLINE:
        notes_alone = role is Role.SUMMARISER and not outside_rollouts and not settings.exp_manager.asks_summariser
        purpose: Purpose = "notes" if notes_alone else "episodes"
        asked = _asked_about(settings, role)
        if (problem := settings.llm.teacher.problem(role, asked, purpose)) is not None:
            several = settings.env_service.is_mixture and role in MAKING
            hint = ", or leave that environment out of task_manager.env_types" if several else ""
            raise ConfigError(
                f"llm.base_url = offline: {problem}; name an endpoint for the role {role.value} (llm.base_url, "
                f"llm.model){hint}"
            )
    if endpoint.base_url == POLICY and outside_rollouts:
        raise ConfigError(
            f"llm.roles.{role.value}.base_url = policy: the role is also called while no policy is served (before "
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
    """Return the environments that a role must know. Roles that make tasks need only those with synthetic tasks."""
    grades = asks_judge(settings.task_manager.grader.original_grader)
    if settings.questioned and (role in MAKING or (role is Role.JUDGE and not grades)):
        return settings.questioned
    return settings.env_service.env_types


def check_sizes(sizes: SizeSettings) -> None:
    """Check sizes that would otherwise fail only after the rollouts. Raises ConfigError."""
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
