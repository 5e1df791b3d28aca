"""Labels of proposals: a proposal's program is run in the world that it is for, the frozen executor is measured on it,
and the gate decides."""

from __future__ import annotations

from agentevolver.recipes.agent0.execute import execute
from agentevolver.recipes.agent0.gates import gate
from agentevolver.recipes.agent0.measure import measure
from agentevolver.recipes.agent0.play import Player
from agentevolver.recipes.agent0.pool import Judged
from agentevolver.recipes.agent0.settings import Agent0Settings
from agentevolver.recipes.agent0.types import Dropped, Proposal
from env_service.protocol import Instances


class GateLabeller:
    """The labeller of a round (`agentevolver.recipes.agent0.pool.Labeller`)."""

    def __init__(
        self,
        settings: Agent0Settings,
        client: Instances,
        world: str,
        player: Player,
        checkpoint: str,
    ) -> None:
        self._settings = settings
        self._client = client
        self._world = world
        self._player = player
        self._checkpoint = checkpoint

    async def label(self, proposal: Proposal, name: str) -> Judged:
        """Run, measure and judge a proposal; raises PlayFailed or EnvServiceError.

        What has no label by the gate's rule is not measured: that would cost `label_k` episodes.
        """
        executed = await execute(self._client, self._world, proposal) if proposal.program else None
        given: str | Dropped | None = None
        if self._settings.gate == "executed":
            given = executed if executed is not None else Dropped("unexecutable", "the proposal has no program")
        if isinstance(given, Dropped):
            return Judged(given, None, executed)
        k = self._settings.executor.label_k
        measurement = await measure(self._player, self._checkpoint, self._world, proposal, k, name, given)
        verdict = gate(self._settings, proposal, measurement, executed)
        return Judged(verdict, measurement, executed)
