"""The benchmark's verdict, from the episode's live environment.

`reward_basis` names what counts: the databases' end state, assertions, the reference's calls, information given to the
user. An aborted episode is graded 0.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from env_service.environments.tau2.database import changes, new_environment, set_initial_state
from env_service.environments.tau2.package import Domain, module, task_of


@dataclass(frozen=True, slots=True)
class Tau2Check:
    """One check of a task; `kind` is one of the package's reward types."""

    kind: str
    what: str
    passed: bool


def checks(domain: Domain, task: Any, environment: Any, trajectory: list[Any]) -> list[Tau2Check]:
    """Return the checks that count for a task, in the order DB, ENV_ASSERTION, ACTION, COMMUNICATE. Raises ValueError
    if only a language model could judge."""
    criteria = task.evaluation_criteria
    if criteria is None:
        return []
    basis = {kind.value for kind in criteria.reward_basis}
    if "NL_ASSERTION" in basis:
        raise ValueError(f"task {task.id!r} needs a language model as judge, which this environment lacks")
    found = []
    if "DB" in basis:
        free = criteria.actions is None and criteria.env_assertions is None
        same = free or end_state(domain, environment) == _reference_state(f"{domain.name}.{task.id}")
        found.append(Tau2Check("DB", "the databases are as the reference leaves them", same))
    if "ENV_ASSERTION" in basis:
        for assertion in criteria.env_assertions or []:
            met = environment.run_env_assertion(assertion, raise_assertion_error=False)
            found.append(Tau2Check("ENV_ASSERTION", f"{assertion.func_name}({assertion.arguments})", bool(met)))
    if "ACTION" in basis:
        evaluator = module("evaluator.evaluator_action").ActionEvaluator
        for action in evaluator.evaluate_actions(trajectory, criteria.actions or []):
            found.append(Tau2Check("ACTION", action.action.get_func_format(), action.action_match))
    if "COMMUNICATE" in basis:
        evaluator = module("evaluator.evaluator_communicate").CommunicateEvaluator
        for said in evaluator.evaluate_communicate_info(trajectory, criteria.communicate_info or []):
            found.append(Tau2Check("COMMUNICATE", said.info, said.met))
    return found


def end_state(domain: Domain, environment: Any) -> dict[str, Any]:
    """Return the differences of an environment's two databases from the domain's."""
    state = {"assistant": changes(environment.tools.db, domain.database)}
    if environment.user_tools is not None:
        state["user"] = changes(environment.user_tools.db, domain.user_database)
    return {who: what for who, what in state.items() if what}


@functools.lru_cache(maxsize=512)
def _reference_state(task_id: str) -> dict[str, Any]:
    domain, task = task_of(task_id)
    environment = new_environment(domain)
    set_initial_state(environment, task)
    for action in task.evaluation_criteria.actions or []:
        try:
            environment.make_tool_call(action.name, requestor=action.requestor, **action.arguments)
        except Exception:  # three calls of the references fail; the package goes on behind them too
            continue
    return end_state(domain, environment)
