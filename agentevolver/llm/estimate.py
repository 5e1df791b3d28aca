"""Estimate of a run's calls, tokens and price by activity, before the run starts.

The constants below are assumptions, not measurements; the report lists them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentevolver.llm.settings import OFFLINE, POLICY, LLMSettings, Role
from agentevolver.llm.store import Usage

OPENING_TOKENS = 1500
"""Start of every prompt: instructions, rules, tools and task."""
STEP_TOKENS = 350
"""An action and its observation in a transcript."""
ACT_TOKENS = 150
"""A reply that holds one action and the thought before it."""
TASK_TOKENS = 150
"""A proposed task with its solution; also an experience."""
VERDICT_TOKENS = 200
LABEL_TOKENS = 60
"""The label of one step."""
SOLUTION_STEPS = 6
KEPT_SHARE = 0.5
"""Share of the proposed tasks that are kept."""
REFUSED_SHARE = 0.2
"""Share of the proposed tasks with a negative verdict; only these get another verdict."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Calls of one role for one purpose; tokens are totals over all calls."""

    name: str
    role: Role
    calls: int
    prompt_tokens: int
    reply_tokens: int

    def cost(self, settings: LLMSettings) -> float:
        endpoint = settings.endpoint(self.role)
        return (self.prompt_tokens * endpoint.price_in + self.reply_tokens * endpoint.price_out) / 1e6


def asking(name: str, role: Role, calls: float, steps: float, reply_tokens: float) -> Activity:
    """Return the activity of calls that each show an opening and `steps` steps and get `reply_tokens` tokens."""
    count = math.ceil(calls)
    prompt = OPENING_TOKENS + steps * STEP_TOKENS
    return Activity(name, role, count, math.ceil(count * prompt), math.ceil(count * reply_tokens))


def exploring(explorations: int, breadth: int, depth: int, window: int) -> Activity:
    """Return the explorer's calls: the breadth phase shows all steps so far, the depth phase the last `window`
    steps."""
    seen = sum(range(breadth)) + sum(min(step, window) for step in range(breadth, breadth + depth))
    calls = explorations * (breadth + depth)
    prompt = calls * OPENING_TOKENS + explorations * seen * STEP_TOKENS
    return Activity("exploring", Role.EXPLORER, calls, prompt, calls * ACT_TOKENS)


def solving(attempts: float, steps: int) -> Activity:
    """Return the verifier's calls for attempts of `steps` steps; each call shows all steps before it."""
    count = math.ceil(attempts)
    prompt = count * (steps * OPENING_TOKENS + sum(range(steps)) * STEP_TOKENS)
    return Activity("solving again", Role.VERIFIER, count * steps, prompt, count * steps * ACT_TOKENS)


def report(activities: Sequence[Activity], settings: LLMSettings, assumptions: Sequence[str] = ()) -> list[str]:
    """Return the estimate as lines, with its assumptions, and a warning if it exceeds the budget."""
    asked = [activity for activity in activities if activity.calls]
    if not asked:
        return []
    lines = ["language models: an estimate, without retries, repairs and thinking"]
    lines.append(f"    {'':<22}{'role':<13}{'calls':>12}{'tokens in':>16}{'tokens out':>14}{'price':>14}")
    total = Usage()
    for activity in asked:
        cost = activity.cost(settings)
        total += Usage(activity.calls, activity.prompt_tokens, activity.reply_tokens, cost)
        numbers = f"{activity.calls:>12,}{activity.prompt_tokens:>16,}{activity.reply_tokens:>14,}"
        lines.append(
            f"    {activity.name:<22}{activity.role.value:<13}{numbers}{_price(settings, activity.role, cost):>14}"
        )
    lines.append(
        f"    {'in all':<35}{total.calls:>12,}{total.prompt_tokens:>16,}"
        f"{total.completion_tokens:>14,}{total.cost:>14,.2f}"
    )
    lines.append(
        f"    assumed: openings of {OPENING_TOKENS} tokens, steps of {STEP_TOKENS}, actions of {ACT_TOKENS}, tasks of "
        f"{TASK_TOKENS}, "
        f"verdicts of {VERDICT_TOKENS}, labels of {LABEL_TOKENS}; solutions of {SOLUTION_STEPS} steps"
    )
    lines += [f"    assumed: {assumption}" for assumption in assumptions]
    return lines + _warnings(total, settings)


def _price(settings: LLMSettings, role: Role, cost: float) -> str:
    endpoint = settings.endpoint(role)
    if endpoint.base_url in (OFFLINE, POLICY):
        return endpoint.base_url
    return f"{cost:,.2f}" if endpoint.price_in or endpoint.price_out else "no price set"


def _warnings(total: Usage, settings: LLMSettings) -> list[str]:
    most, dearest = settings.budget.max_tokens, settings.budget.max_cost
    over = (
        [f"{total.tokens:,} tokens; llm.budget.max_tokens = {most:,}"]
        if most is not None and total.tokens > most
        else []
    )
    over += (
        [f"a price of {total.cost:,.2f}; llm.budget.max_cost = {dearest:,.2f}"]
        if dearest is not None and total.cost > dearest
        else []
    )
    return [f"    WARNING: the budget would be spent before the end: {text}" for text in over]
