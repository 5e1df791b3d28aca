"""The keys in which a round's two trainings differ from the run's configuration, and their checks before round 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentevolver.config.overlay import check_overlay, flat
from agentevolver.config.schema import Settings
from agentevolver.recipes.agent0.settings import PROPOSE_ENV, settings_of
from agentevolver.trainer.checkpoints import model_difference
from agentevolver.utils.errors import ConfigError

GRADER = "agentevolver.recipes.agent0.frontier:FrontierGrader"
REWARD = "agentevolver.recipes.agent0.proposer_reward:ProposerReward"
CONTENTS = ("model", "optimizer", "extra", "hf_model")
# Keys of every proposer's episodes: one text message each.
PROPOSING: dict[str, Any] = {
    "env_service.env_type": PROPOSE_ENV,
    "env_service.environments": {},
    "env_service.env_params": {},
    "env_service.val_env_params": {},
    "actor_rollout_ref.rollout.multi_turn.max_steps": 1,
    "actor_rollout_ref.rollout.tool_format": "none",
}
CREDIT = "attribution_driven_credit_assignment"


def proposer_overlay(
    config: Mapping[str, Any], settings: Settings, folder: Path, *, tasks: int, start: str, executor: str
) -> dict[str, Any]:
    """Return the keys of a proposer's training in `folder`: one message an episode in the environment `propose`, graded
    by the frozen executor. There are `tasks` seeds; the training begins with the weights `start`."""
    section = settings_of(settings).proposer
    base = section.path or str(config["actor_rollout_ref"]["model"]["path"])
    return {
        **_common(settings, folder, base, start, section.steps, section.batch_size, tasks),
        **PROPOSING,
        "actor_rollout_ref.rollout.n": section.n,
        "recipes.agent0.frozen": executor,
        "task_manager.grader.original_grader": GRADER,
        "trainer.reward_stages": [{"use": REWARD}],
        "trainer.row_clips": [],
        f"{CREDIT}.enable": False,
        **flat(section.override, config),
    }


def solver_overlay(
    config: Mapping[str, Any], settings: Settings, folder: Path, *, tasks: int, start: str
) -> dict[str, Any]:
    section, base = settings_of(settings).executor, str(config["actor_rollout_ref"]["model"]["path"])
    return {
        **_common(settings, folder, base, start, section.steps, settings.sizes.train_batch_size, tasks),
        **(_adpo(config, settings) if settings_of(settings).adpo.enable else {}),
    }


def _common(
    settings: Settings, folder: Path, base: str, start: str, steps: int, batch_size: int, tasks: int
) -> dict[str, Any]:
    per_epoch = max(1, tasks // batch_size)
    return {
        "experiment.dir": str(folder),
        "trainer.experiment_name": f"{folder.parent.parent.name}-{folder.parent.name}-{folder.name}",
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": -(-steps // per_epoch),
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "auto",
        "trainer.weights": None if start == base else start,
        "actor_rollout_ref.model.path": base,
        "actor_rollout_ref.actor.checkpoint.save_contents": list(CONTENTS),
        "actor_rollout_ref.actor.ppo_mini_batch_size": _divisor(batch_size, settings.sizes.ppo_mini_batch_size),
        "data.train_batch_size": batch_size,
        "cold_start.files": [],
    }


def _adpo(config: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the keys of ADPO: its advantage stage, placed after the configured stages (GRPO's if step credit is off),
    and its upper clip."""
    adpo, (low, high) = settings_of(settings).adpo, settings_of(settings).keep
    ambiguity = {"use": "ambiguity", "lo": low, "hi": high, "s_min": adpo.s_min}
    own, norm = settings.attribution, bool(config["algorithm"].get("norm_adv_by_std_in_grpo", True))
    grpo = {"use": "outcome", "norm_by_std": norm}
    before: Sequence[Any] = [stage.model_dump(mode="json") for stage in own.stages] if own.enable else [grpo]
    rules = [rule.model_dump(mode="json") for rule in settings.trainer.row_clips]
    return {
        f"{CREDIT}.enable": True,
        **({} if own.enable else {f"{CREDIT}.attributor": "none"}),
        f"{CREDIT}.stages": [*before, ambiguity],
        "trainer.row_clips": [*rules, {"use": "ambiguity", "lo": low, "hi": high, "bonus": adpo.bonus}],
    }


def _divisor(number: int, most: int) -> int:
    return next(size for size in range(min(number, most), 0, -1) if number % size == 0)


def check_trainings(config: Mapping[str, Any], settings: Settings) -> None:
    """Raise ConfigError now for what would be refused only in the round that begins a training."""
    section = settings_of(settings)
    folder, start = settings.experiment_dir / "round_1", str(config["actor_rollout_ref"]["model"]["path"])
    solver = solver_overlay(config, settings, folder / "solver", tasks=section.pool, start=start)
    check_overlay(config, solver, "recipes.agent0.executor")
    if section.proposer.trained:
        tasks = section.proposer.steps * section.proposer.batch_size
        proposer = proposer_overlay(
            config, settings, folder / "proposer", tasks=tasks, start=section.proposer.path or start, executor=start
        )
        check_overlay(config, proposer, "recipes.agent0.proposer.override")
    if (path := section.proposer.path) is not None:
        try:
            difference = model_difference(start, path)
        except ValueError as error:
            raise ConfigError(f"recipes.agent0.proposer.path = {path}: {error}") from error
        if difference is not None:
            raise ConfigError(
                f"recipes.agent0.proposer.path = {path} has another architecture than {start}, but one engine serves "
                f"both: {difference}"
            )
