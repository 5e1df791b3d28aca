"""Estimate of a run's language model calls for `--dry-run`, as activities of `agentevolver.llm.estimate`."""

from __future__ import annotations

import math

from agentevolver.config.schema import Settings
from agentevolver.llm import estimate
from agentevolver.llm.estimate import Activity, asking
from agentevolver.llm.settings import Role
from task_manager.settings import WITHOUT_JUDGE

SEED_TASKS = 100
"""Assumed number of training tasks if the environment has not listed them yet."""


def expected(
    settings: Settings, total_training_steps: int | None, total_epochs: int
) -> tuple[list[Activity], list[str]]:
    """Return the run's activities and the assumptions behind them.

    Args:
        total_training_steps: `trainer.total_training_steps`; None: as many steps as `total_epochs` take.
    """
    section, assumptions = settings.task_manager, []
    tasks = section.max_seed_tasks or SEED_TASKS
    if section.max_seed_tasks is None and (section.makes_tasks or total_training_steps is None):
        assumptions.append(
            f"{SEED_TASKS} training tasks of the environment, which says how many there are when it is up"
        )
    making = [_making(settings, env_type, tasks) for env_type in settings.questioned]
    made, kept = [activity for activities, _ in making for activity in activities], sum(count for _, count in making)
    tasks *= sum(environment.weight > 0 for environment in settings.environments)
    steps = total_training_steps or total_epochs * max(
        1, math.ceil(_tasks_of_an_epoch(settings, tasks, kept) / settings.sizes.train_batch_size)
    )
    trained = [*_grading(settings, steps), *_attributing(settings, steps), *_distilling(settings, steps, tasks)]
    if section.grader.synthetic_grader == "auto" and any(activity.role is Role.JUDGE for activity in trained):
        assumptions.append("a judge for every rollout of a synthetic task; those with a check of the state need none")
    if any(activity.calls for activity in trained):
        assumptions.append(
            f"{steps} training steps with episodes of the greatest length ({settings.rollout.max_steps} steps), "
            "without validation"
        )
    return [*made, *trained], assumptions


def _making(settings: Settings, env_type: str, tasks: int) -> tuple[list[Activity], int]:
    """Return the activities of synthesising an environment's tasks, and the expected number of tasks kept."""
    section = settings.task_manager
    if not section.makes_tasks:
        return [], 0
    explorations = tasks * section.n
    if section.target_tasks is not None:
        explorations = min(
            explorations, math.ceil(section.target_tasks / (estimate.KEPT_SHARE * section.synthesis.max_tasks))
        )
    verification = section.verification
    breadth, depth = section.strategy_args.steps(env_type)
    proposed = explorations * section.synthesis.max_tasks
    length = estimate.SOLUTION_STEPS + 1
    verdicts = proposed * (1 + estimate.REFUSED_SHARE * verification.second_opinions)
    replies = section.synthesis.max_tasks * estimate.TASK_TOKENS
    out = [
        estimate.exploring(explorations, breadth, depth, section.strategy_args.window(env_type)),
        asking("making up tasks", Role.SYNTHESISER, explorations, breadth + depth, replies),
        estimate.solving(proposed if verification.resolve else 0, length),
        asking(
            "checking tasks",
            Role.JUDGE,
            verdicts if verification.judge else 0,
            estimate.SOLUTION_STEPS,
            estimate.VERDICT_TOKENS,
        ),
    ]
    return out, math.ceil(proposed * estimate.KEPT_SHARE)


def _tasks_of_an_epoch(settings: Settings, tasks: int, kept: int) -> float:
    mixture = settings.task_manager.mixture
    synthetic = min(kept, mixture.synthetic_data_ratio * tasks) if mixture.use_original_tasks else kept
    return (tasks if mixture.use_original_tasks else 0) + synthetic


def _grading(settings: Settings, steps: int) -> list[Activity]:
    section, sizes = settings.task_manager, settings.sizes
    mixture, grader = section.mixture, section.grader
    names = grader.graders(mixture)
    if all(name in WITHOUT_JUDGE for name in names):
        return []
    share = 1.0
    if mixture.is_hybrid and grader.original_grader in WITHOUT_JUDGE:
        share = mixture.synthetic_data_ratio / (1.0 + mixture.synthetic_data_ratio)
    samples = grader.samples if any(name.startswith("avg-") for name in names) else 1
    calls = steps * sizes.train_batch_size * sizes.n * share * samples
    return [asking("grading rollouts", Role.JUDGE, calls, settings.rollout.max_steps, estimate.VERDICT_TOKENS)]


def _attributing(settings: Settings, steps: int) -> list[Activity]:
    section, sizes = settings.attribution, settings.sizes
    if not section.active or section.attributor != "llm":
        return []
    length = settings.rollout.max_steps
    rollouts = min(steps, section.adca_grpo.prm_steps) * sizes.train_batch_size * sizes.n
    windows = math.ceil(length / section.window_steps)
    labels = length * estimate.LABEL_TOKENS / windows
    return [asking("labelling steps", Role.ATTRIBUTOR, rollouts * windows, length, labels)]


def _distilling(settings: Settings, steps: int, tasks: int) -> list[Activity]:
    section, sizes, length = settings.exp_manager, settings.sizes, settings.rollout.max_steps
    if not section.asks_summariser:
        return []
    reme, distillation = section.reme, section.distillation
    groups = 0.0
    if reme.enable_summarizer and reme.updated_freq:
        groups += steps // reme.updated_freq * sizes.train_batch_size * math.ceil(sizes.n / section.summary_batch_size)
    if section.init_exp_before_training:
        groups += (section.init_tasks or tasks) * math.ceil(section.init_rollouts / section.summary_batch_size)
    looked_at = min(sizes.n, 2 * distillation.max_per_kind or sizes.n)
    sources = groups * (looked_at + 1)
    guided = steps * sizes.train_batch_size if section.guides_training else 0
    chosen = guided * (section.retrieval.rerank + section.retrieval.rewrite)
    experiences = distillation.max_experiences * estimate.TASK_TOKENS
    return [
        asking("distilling", Role.SUMMARISER, sources, length, experiences),
        asking("checking experience", Role.SUMMARISER, sources, length, estimate.VERDICT_TOKENS),
        asking("choosing experience", Role.SUMMARISER, chosen, 0, estimate.TASK_TOKENS),
    ]
