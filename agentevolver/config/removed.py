"""Removed keys: what to write instead, or the fixed value. Keys that became a ClassVar of their model need no entry."""

from __future__ import annotations

from pydantic import BaseModel

from agentevolver.config.schema import Settings, place_of

# Old key or section -> new place. Keys below it keep their names.
RENAMED: dict[str, str] = {"exp_manager.encoder.path": "exp_manager.encoder.model"}
_ATTRIBUTION = "attribution_driven_credit_assignment"
_ADCA = f"{_ATTRIBUTION}.adca_grpo"
_GIGPO = f"{_ATTRIBUTION}.gigpo"
REMOVED: dict[str, str] = {
    "actor_rollout_ref.rollout.agent_max_calls": "an agent may call the model as often as multi_turn.max_steps says",
    "actor_rollout_ref.rollout.max_plans": "an episode has at most four plans",
    "actor_rollout_ref.rollout.parallel_tool_calls": "max_tool_calls: 1 carries out the first call alone",
    "actor_rollout_ref.rollout.think_hint": "the environment's opening says how to answer",
    "cold_start.max_per_task": "the four shortest conversations of a task are imitated",
    "cold_start.untold_score": "write a score beside each conversation",
    "env_service.max_instances": "the service has room for every episode in flight",
    "trainer.val_pause_training": "validation always has the engine to itself",
    "watchdog.enable": "it always watches, and ends nothing",
    f"{_ADCA}.alpha_progress": "the schedule follows step / total_steps",
    f"{_ADCA}.alpha_schedule": "write alpha_cosine_decay_enable: true for cosine",
    f"{_ADCA}.sigma": "adca_grpo.preset decides: original of steps, paper of trajectory means",
    f"{_ADCA}.sigma_floor": "it is fixed at 0.5",
    f"{_GIGPO}.norm_by_std": "a state's returns are always divided by their deviation",
    f"{_GIGPO}.similarity": "steps share a state if their observations are equal",
    f"{_ATTRIBUTION}.label_cache": "llm.cache keeps replies across restarts, those about labels too",
    "task_manager.deduplication.contamination": "tasks that resemble an evaluation task are always left out",
    "task_manager.deduplication.scope": "queries are compared with those of every world",
    "task_manager.explore_env_params": "explorations have env_service.env_params",
    "task_manager.num_verify_threads": "as many proposals are verified at once as num_explore_threads says",
    "task_manager.strategy_args.depth_llm_temperature": "exploration_llm_temperature is that of both phases",
    "task_manager.synthesis.preference": "write it into the profile (task_manager.env_profile) as a rubric",
    "task_manager.verification.execute": "solutions are executed unless the action format forbids it",
    "task_manager.deduplication.encoder": "the encoder that is shipped compares queries",
    "task_manager.strategy_args.depth_window": "an explorer sees as many observations as depth_steps",
    "task_manager.synthesis.min_confidence": "what the synthesiser says of its confidence decides nothing",
    "task_manager.verification.min_judge_confidence": "what the judge says of its confidence decides nothing",
    "task_manager.verification.max_resolve_steps": "a try may take three times the steps of the reference, and two",
    "exp_manager.query": "experience is searched for by the task, which the encoder's 256 tokens hold",
    "exp_manager.embedded_text": "exp_manager.preset decides: default when_to_use+content, the others when_to_use",
    "exp_manager.distillation.success_threshold": "exp_manager.preset decides: original 1.0, the others ask the grader",
    "exp_manager.distillation.grouping": "exp_manager.preset decides: original a step's rollouts, the others a task's",
    "exp_manager.distillation.max_per_kind": "exp_manager.preset decides: default two of a kind, the others all",
    "exp_manager.distillation.comparative": "the best of a group is always compared with the worst",
    "exp_manager.distillation.concurrency": "four groups are distilled at once",
    "exp_manager.scout.tasks": "exp_manager.scout.filter says which tasks are rolled out",
    "exp_manager.ratio_rounding": "exp_manager.preset decides: original rounds, the others take the floor",
    "exp_manager.index": "every search is exact",
    "exp_manager.hnsw_above": "every search is exact",
    "exp_manager.dedup_threshold": "exp_manager.preset decides: original 1.0, the others 0.85",
    "exp_manager.distillation.validate_by_llm": "the summariser judges every experience",
    "exp_manager.retrieval.min_similarity": "no experience is left out for its distance",
}


def told(path: str) -> str | None:
    """Return the explanation for a removed key, or None if the key never existed."""
    for old, new in RENAMED.items():
        if path == old or path.startswith(f"{old}."):
            return f"it is now `{new}{path.removeprefix(old)}`"
    if path in REMOVED:
        return f"{REMOVED[path]}; remove it"
    section, _, key = path.rpartition(".")
    for name, field in Settings.model_fields.items():
        value = _constant(field.annotation, place_of(name), section, key)
        if value is not None:
            return f"it is fixed at {value}; remove it"
    return None


def _constant(model: object, place: str, section: str, key: str) -> str | None:
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or not f"{section}.".startswith(f"{place}."):
        return None
    if place == section:
        return str(getattr(model, key)) if key in model.__class_vars__ else None
    inner = section.removeprefix(f"{place}.").partition(".")[0]
    field = model.model_fields.get(inner)
    return _constant(field.annotation, f"{place}.{inner}", section, key) if field is not None else None
