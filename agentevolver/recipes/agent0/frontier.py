"""Grader of proposals: the score is high if the frozen executor solves the proposed task about half of the time.

A proposal is graded as soon as it is written. If the gate needs a label of its program, that runs first; then the
executor plays the task. The score leaves out the repetition penalty, which needs the whole batch. The outcome's facts
hold the measurements, from which `proposer_reward` computes the reward. A rollout that could not be measured has no
grade.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agentevolver.recipes.agent0.execute import execute
from agentevolver.recipes.agent0.gates import gate
from agentevolver.recipes.agent0.measure import measure
from agentevolver.recipes.agent0.play import Player, PlayFailed, player_of
from agentevolver.recipes.agent0.reward import frontier_reward
from agentevolver.recipes.agent0.settings import Agent0Settings, settings_of
from agentevolver.recipes.agent0.types import DroppedProposal, KeptProposal, Measurement, ProposedTask
from agentevolver.types import Outcome, Task
from agentevolver.utils import seeds
from env_service.client import EnvRequestError
from task_manager.graders.base import GradingError, Transcript
from task_manager.graders.registry import GraderContext


class FrontierGrader:
    """Grader of the environment `propose`, for one event loop.

    The gate gives the label; p is the share of `executor.k` episodes with that answer, 0 without a label. If the
    program gives no label, the proposal is refused as `unexecutable`, `unequal` or `timeout`. Without `player`,
    episodes run on the rounds' frozen policies, as configured in the experiment's folder above this training's. Raises
    ValueError if `recipes.agent0.frozen` is not set.
    """

    name = "frontier"

    def __init__(self, context: GraderContext, player: Player | None = None) -> None:
        if context.run is None or not settings_of(context.run).frozen:
            raise ValueError(
                "recipes.agent0.frozen names no executor that proposals could be measured by: it is set by the rounds "
                "(recipes.agent0.enable), or to the folder of a checkpoint"
            )
        self._settings: Agent0Settings = settings_of(context.run)
        self._rounds = context.run.experiment_dir.parent.parent
        self._player = player

    async def grade(self, task: Task, trajectory: Transcript, client: Any, instance_id: str) -> Outcome:
        """Return the grade: success means a well-formed proposal, the score (0..1) is its reward without repetition.

        Raises GradingError if the executor could not be measured, EnvServiceError if the service failed.
        """
        facts = await _told(client, task, instance_id)
        proposal, world = ProposedTask.from_facts(task.task_id, task.task_id, facts), str(facts["world"])
        executed: str | DroppedProposal | None = None
        if not proposal.refused and self._settings.gate == "executed":
            executed = await execute(client, world, proposal)
            if isinstance(executed, DroppedProposal):
                proposal = ProposedTask(**{**proposal.to_dict(), "refused": f"{executed.reason}: {executed.detail}"})
        found = {"question": proposal.question, "program": proposal.program, "answer": proposal.answer, "world": world}
        if proposal.refused:
            facts = {**found, "refused": proposal.refused, "p": None, "calls": 0.0}
            return Outcome(0.0, False, f"refused: {proposal.refused}", facts=facts)
        measurement = await self._measure(proposal, world, executed, client)
        label, p = self._label(proposal, measurement, executed)
        calls = measurement.mean_calls
        score = min(max(frontier_reward(self._settings.reward, p, calls), 0.0), 1.0)
        told = {"label": label, "p": p, "calls": calls, "measured": asdict(measurement)}
        return Outcome(score, True, f"p {p:.3g}, {calls:.3g} calls", facts={**found, "refused": "", **told})

    async def _measure(
        self, proposal: ProposedTask, world: str, executed: str | DroppedProposal | None, client: Any
    ) -> Measurement:
        self._player = self._player or player_of(self._rounds, client)
        draws = seeds.current()
        name = f"reward.{seeds.derived(proposal.question) if draws is None else draws.seed('frontier')}"
        label = executed if isinstance(executed, str) else None
        try:
            k, executor = self._settings.executor.k, str(self._settings.frozen)
            return await measure(self._player, executor, world, proposal, k, name, label)
        except PlayFailed as error:
            raise GradingError(f"proposal {proposal.question!r} could not be measured: {error}") from error

    def _label(
        self, proposal: ProposedTask, measurement: Measurement, executed: str | DroppedProposal | None
    ) -> tuple[str, float]:
        unfiltered = self._settings.model_copy(update={"keep": (0.0, 1.0), "min_answered": 0})
        verdict = gate(unfiltered, proposal, measurement, executed)
        return (verdict.label, verdict.p) if isinstance(verdict, KeptProposal) else ("", 0.0)


async def _told(client: Any, task: Task, instance_id: str) -> Mapping[str, Any]:
    try:
        state = await client.get_tools_info(instance_id, params={"what": "state"})
    except EnvRequestError as error:
        raise GradingError(f"task {task.task_id}: {task.env_type!r} does not expose its state: {error}") from error
    facts = state.get("facts") if isinstance(state, Mapping) else None
    if not isinstance(facts, Mapping) or "refused" not in facts or not facts.get("world"):
        raise GradingError(
            f"task {task.task_id}: the state of {task.env_type!r} lacks the proposal or its world: {str(state)[:200]}"
        )
    return facts
