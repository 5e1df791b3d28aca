"""Measures a policy of `calc` and `propose` by sampling: the executor's success, and the proposals' form and length."""

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
from env_service.environments.calc.grammar import parse_question
from env_service.environments.calc.tasks import question_of
from env_service.environments.propose.env import ProposeEnv

# The longest proposal has 29 tokens, a call 7.
SYNTAX = replace(COMPACT, turn_tokens=32, episode_tokens=384)
_BATCH = 336


def measure_executor(model: Any, tokenizer: Any, *, split: str = "dev", n: int = 8, seed: int = 0) -> dict[str, Any]:
    """Play `n` episodes of every task of a split at temperature 1; success is the mean over levels."""
    envs = [CalcEnv(task, "sample") for task in CalcEnv.get_query_list(split) for _ in range(n)]
    rollouts = play(model, tokenizer, envs, seed)
    grades: dict[int, list[float]] = {}
    for rollout in rollouts:
        grades.setdefault(question_of(rollout.task_id).level, []).append(rollout.reward)
    levels = {level: sum(values) / len(values) for level, values in sorted(grades.items())}
    return {
        f"avg@{n}": round(sum(levels.values()) / len(levels), 3),
        "by operands": {str(level): round(share, 3) for level, share in levels.items()},
        "actions": round(sum(len(r.actions) for r in rollouts) / len(rollouts), 2),
    }


def measure_proposer(model: Any, tokenizer: Any, *, n: int = 640, seed: int = 0) -> dict[str, Any]:
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
    sampler, generator = Sampler(model, tokenizer, syntax=SYNTAX), torch.Generator().manual_seed(seed)
    episodes = [(env, env.get_init_state()["state"]) for env in envs]
    return [
        rollout
        for start in range(0, len(episodes), _BATCH)
        for rollout in sampler.sample(episodes[start : start + _BATCH], generator=generator)
    ]
