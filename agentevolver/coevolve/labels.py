"""Labels of proposals: a proposal's program is run in the world that it is for, the frozen executor is measured on it,
and the gate decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentevolver.coevolve.execute import execute
from agentevolver.coevolve.gates import gate
from agentevolver.coevolve.measure import measure
from agentevolver.coevolve.play import Player
from agentevolver.coevolve.pool import Judged
from agentevolver.coevolve.types import Dropped, Proposal
from agentevolver.config.coevolve import CoevolveSettings
from env_service.protocol import Instances

Judge = Callable[[Proposal, "str | Dropped | None"], Awaitable[str | Dropped]]
"""Answers a proposal's question, told what its program gave (None: it has none), or says why not."""


class GateLabeller:
    """The labeller of a round (`agentevolver.coevolve.pool.Labeller`).

    Args:
        settings: of the rounds.
        client: of the environment service.
        world: the environment that the proposals are for.
        player: plays the executor.
        checkpoint: of the frozen executor.
        judge: is asked where `settings.gate` is `judge`.
    """

    def __init__(
        self,
        settings: CoevolveSettings,
        client: Instances,
        world: str,
        player: Player,
        checkpoint: str,
        judge: Judge | None = None,
    ) -> None:
        self._settings = settings
        self._client = client
        self._world = world
        self._player = player
        self._checkpoint = checkpoint
        self._judge = judge

    async def label(self, proposal: Proposal, name: str) -> Judged:
        """Run, measure and judge a proposal. What has no label by the gate's rule is not measured:
        that would cost `label_k` episodes.

        Raises:
            PlayFailed: it could not be measured.
            EnvServiceError: the environment service failed.
        """
        chosen = self._settings.gate
        executed = await execute(self._client, self._world, proposal) if proposal.program else None
        judged = await self._judge(proposal, executed) if chosen == "judge" and self._judge is not None else None
        given: str | Dropped | None = None
        if chosen == "executed":
            given = executed if executed is not None else Dropped("unexecutable", "the proposal has no program")
        elif chosen == "judge":
            given = judged
        if isinstance(given, Dropped):
            return Judged(given, None, executed)
        k = self._settings.executor.label_k
        measurement = await measure(self._player, self._checkpoint, self._world, proposal, k, name, given)
        verdict = gate(self._settings, proposal, measurement, executed, judged)
        return Judged(verdict, measurement, executed)
