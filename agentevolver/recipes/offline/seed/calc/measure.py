"""Measure of a policy of the worlds `calc` and `propose`, by sampling: how often the executor succeeds and by what it
fails, how often a proposal is well formed and how long it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from agentevolver.recipes.offline.seed.sampler import SampledRollout, Sampler
from agentevolver.recipes.offline.seed.syntax import COMPACT
from env_service.base import BaseEnv
from env_service.environments.calc.env import CalcEnv
from env_service.environments.calc.grammar import parse_question, solution
from env_service.environments.calc.tasks import question_of
from env_service.environments.propose.env import ProposeEnv

# The longest proposal has 29 tokens, a call 7.
SYNTAX = replace(COMPACT, turn_tokens=32, episode_tokens=384)
_BATCH = 336


def measure_executor(model: Any, tokenizer: Any, *, split: str = "dev", n: int = 8, seed: int = 0) -> dict[str, Any]:
    """Play `n` episodes of every task of a split at temperature 1.

    Returns success (the mean of the levels') and by number of operands, actions an episode, and by what failed episodes
    failed first, as shares of all that failed (`failure`).
    """
    envs = [CalcEnv(task, "sample") for task in CalcEnv.get_query_list(split) for _ in range(n)]
    rollouts = play(model, tokenizer, envs, seed)
    grades: dict[int, list[float]] = {}
    for rollout in rollouts:
        grades.setdefault(question_of(rollout.task_id).level, []).append(rollout.reward)
    levels = {level: sum(values) / len(values) for level, values in sorted(grades.items())}
    failures = Counter(failure(rollout) for rollout in rollouts if rollout.reward < 1.0)
    return {
        f"avg@{n}": round(sum(levels.values()) / len(levels), 3),
        "by operands": {str(level): round(share, 3) for level, share in levels.items()},
        "actions": round(sum(len(r.actions) for r in rollouts) / len(rollouts), 2),
        "failures": {kind: round(times / failures.total(), 3) for kind, times in failures.most_common()},
    }


def measure_proposer(model: Any, tokenizer: Any, *, n: int = 640, seed: int = 0) -> dict[str, Any]:
    """Draw a proposal for each of `n` seeds of dev at temperature 1.

    Returns the share that is well formed, of these how many have 2, 3, ... operands and how many are different, and the
    words of the refusals of the others, as shares.
    """
    envs = [ProposeEnv(seed_id, "sample") for seed_id in ProposeEnv.get_query_list("dev", {"count": n})]
    play(model, tokenizer, envs, seed)
    facts = [env.get_info(params={"what": "state"})["facts"] for env in envs]
    refused = Counter(fact["refused"].partition(":")[0] for fact in facts if fact["refused"])
    questions = [fact["question"] for fact in facts if not fact["refused"]]
    operands = Counter(parse_question(question).level for question in questions)
    made = max(len(questions), 1)
    return {
        "well formed": round(len(questions) / n, 3),
        "operands": {str(level): round(times / made, 3) for level, times in sorted(operands.items())},
        "different": round(len(set(questions)) / made, 3),
        "refused": {word: round(times / n, 3) for word, times in refused.most_common()},
    }


def play(model: Any, tokenizer: Any, envs: Sequence[BaseEnv], seed: int) -> list[SampledRollout]:
    """One sampled episode in each fresh instance, in order."""
    sampler, generator = Sampler(model, tokenizer, syntax=SYNTAX), torch.Generator().manual_seed(seed)
    episodes = [(env, env.get_init_state()["state"]) for env in envs]
    return [
        rollout
        for start in range(0, len(episodes), _BATCH)
        for rollout in sampler.sample(episodes[start : start + _BATCH], generator=generator)
    ]


def failure(rollout: SampledRollout) -> str:
    """What a failed episode of calc did first that its solution does not: "form" (refused and never mended), "operand",
    "operator", "early" or "late" answer, "answer" (another than the last result), or "unfinished"."""
    left = [(str(step.first), step.operator, str(step.second)) for step in solution(question_of(rollout.task_id))]
    refused = False
    for action, observation in zip(rollout.actions, rollout.observations, strict=True):
        words = action.split()
        if observation.startswith("err"):
            refused = True
        elif words[0] == "answer":
            return "early answer" if left else "answer"
        elif not left:
            return "late answer"
        elif tuple(words[1:]) != (expected := left.pop(0)):
            return "operator" if (words[1], words[3]) == (expected[0], expected[2]) else "operand"
    return "form" if refused else "unfinished"
