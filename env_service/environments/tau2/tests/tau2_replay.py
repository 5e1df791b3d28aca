"""Plays scripts against tau2 through the environment's own steps, and asks the benchmark's scorer about them.

A script is a list of moves: a call of the agent, something that the customer is asked to do with its phone, or a
message. `python env_service/environments/tau2/tests/tau2_replay.py [ROUNDS]` replays all references,
nothing at all, and ROUNDS changed references a task against the scorer, and prints a table.
"""

from __future__ import annotations

import collections
import copy
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from env_service.base import Message
from env_service.environments.tau2.env import Tau2Env
from env_service.environments.tau2.package import DOMAINS, module, task_of


@dataclass(frozen=True)
class Move:
    """`name` is called by the agent, or by the customer whom it asks; without one `text` is said."""

    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    by_user: bool = False
    text: str = ""


def reference(task_id: str) -> list[Move]:
    """Return the moves of a task's reference: its calls, and a message that holds what has to be said."""
    criteria = task_of(task_id)[1].evaluation_criteria
    moves = [Move(a.name, a.arguments, a.requestor == "user") for a in criteria.actions or []]
    return [*moves, Move(text=f"All done. {' '.join(criteria.communicate_info or [])}")]


def play(task_id: str, moves: list[Move], *, stop: bool = True, **params: Any) -> Tau2Env:
    """Return the environment after the moves, and after small talk (or `done`) that ends it unless told not to."""
    env = Tau2Env(task_id, "replay", {"native_tools": True, "max_steps": 1000, "max_errors": 0, **params})
    env.get_init_state()
    is_solo = params.get("user") == "solo"
    for number, move in enumerate(moves):
        if is_solo and not move.name:
            continue
        if env.step(_message(move, number, is_solo=is_solo))["is_terminated"]:
            return env
    while stop and not env.step(_call("done", {}, 0) if is_solo else _said("Anything else?"))["is_terminated"]:
        pass
    return env


def official(env: Tau2Env) -> float:
    """Return the verdict of the benchmark's own `evaluate_simulation` on an episode's messages, or of the evaluators
    that it multiplies where litellm, which it imports, is missing."""
    domain, task = task_of(env.task_id)
    solo = env.params.get("user") == "solo"
    stopped = env._stop == "finished"
    messages = copy.deepcopy(env.trajectory)
    try:
        scorer = module("evaluator.evaluator")
    except RuntimeError:
        return _multiplied(domain.name, task, messages, solo=solo) if stopped else 0.0
    simulation = module("data_model.simulation")
    reason = simulation.TerminationReason
    run = simulation.SimulationRun.model_construct(
        messages=messages, termination_reason=reason.USER_STOP if stopped else reason.MAX_STEPS
    )
    return float(scorer.evaluate_simulation(run, task, scorer.EvaluationType.ALL, solo, domain.name).reward)


def _multiplied(domain: str, task: Any, messages: list[Any], *, solo: bool) -> float:
    basis = {kind.value for kind in task.evaluation_criteria.reward_basis}
    constructor = module(f"domains.{domain}.environment").get_environment
    reward = (
        module("evaluator.evaluator_env")
        .EnvironmentEvaluator.calculate_reward(
            environment_constructor=constructor, task=task, full_trajectory=messages, solo_mode=solo
        )
        .reward
    )
    if "ACTION" in basis:
        reward *= module("evaluator.evaluator_action").ActionEvaluator.calculate_reward(task, messages).reward
    if "COMMUNICATE" in basis:
        reward *= module("evaluator.evaluator_communicate").CommunicateEvaluator.calculate_reward(task, messages).reward
    return float(reward)


def changed(moves: list[Move], rng: random.Random) -> tuple[str, list[Move]]:
    """Return a change's name and the moves with it."""
    moves = list(moves)
    calls = [i for i, move in enumerate(moves) if move.name]
    kind = rng.choice(("drop", "repeat", "swap", "argument", "stranger", "silence", "short"))
    if kind == "silence" or not calls:
        return "silence", moves[:-1]
    at = rng.choice(calls)
    if kind == "drop":
        del moves[at]
    elif kind == "repeat":
        moves.insert(rng.choice(calls), moves[at])
    elif kind == "swap":
        other = rng.choice(calls)
        moves[at], moves[other] = moves[other], moves[at]
    elif kind == "argument":
        moves[at] = Move(moves[at].name, _bent(moves[at].arguments, rng), moves[at].by_user)
    elif kind == "stranger":
        moves.insert(at, Move("no_such_tool", {"x": 1}))
    else:
        moves = moves[: at + 1]
    return kind, moves


def _bent(arguments: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    bent = copy.deepcopy(arguments)
    if not bent:
        return {"unasked": True}
    key = rng.choice(sorted(bent))
    value = bent[key]
    if isinstance(value, bool):
        bent[key] = not value
    elif isinstance(value, int | float):
        bent[key] = value + 1
    elif isinstance(value, str | list) and value:
        bent[key] = value[:-1]
    else:
        del bent[key]
    return bent


def _message(move: Move, number: int, *, is_solo: bool) -> Message:
    if not move.name:
        return _said(move.text)
    if move.by_user and not is_solo:
        return _said(f"Please do this: {move.name}({json.dumps(move.arguments)})")
    return _call(move.name, move.arguments, number)


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _call(name: str, arguments: dict[str, Any], number: int) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": f"c{number}", "function": function}]}


def _table(rounds: int) -> None:
    began = time.monotonic()
    rng = random.Random(0)
    for domain in DOMAINS:
        ids = Tau2Env.get_query_list("base", {"domains": [domain]})
        users = ("scripted", "solo") if domain == "telecom" else ("scripted",)
        for user in users:
            gold = {task: play(task, reference(task), user=user) for task in ids}
            missed = [task for task, env in gold.items() if env.evaluate() != 1.0]
            empty = [play(task, [], user=user).evaluate() for task in ids]
            print(f"{domain} {user}: reference 1.0 on {len(ids) - len(missed)}/{len(ids)}; empty {sum(empty):g}")
            for task in missed:
                found = [c for c in gold[task].get_info(params={"what": "checks"}) if not c["passed"]]
                print(f"  {task}: official {official(gold[task])}, {found}")
            seen: collections.Counter[str] = collections.Counter()
            for task in ids * rounds:
                kind, moves = changed(reference(task), rng)
                env = play(task, moves, stop=rng.random() > 0.05, user=user)
                ours, theirs = env.evaluate(), official(env)
                seen[f"{'same' if ours == theirs else 'DIFFERENT'} {theirs:g}"] += 1
                if ours != theirs:
                    print(f"  {task} {kind}: ours {ours}, official {theirs}")
            print(f"  changed references, verdicts beside the official scorer's: {dict(seen)}")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    _table(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
