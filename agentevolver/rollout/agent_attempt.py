"""A rollout that the user's agent plays: model calls go through the gateway, actions to the environment.

The rollout ends when the agent does. A refusal by the gateway or the environment takes precedence over the agent's own
error as the stop reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from agentevolver.rollout.agent import Agent, AgentFailed, Result
from agentevolver.rollout.attempt import Attempt, AttemptFacts, RolloutAssignment
from agentevolver.rollout.engine import EngineError
from agentevolver.rollout.gateway.rollout import CallLimits, GatewayRollout
from agentevolver.rollout.gateway.server import GatewayServer
from agentevolver.rollout.pause import PAUSE
from agentevolver.rollout.policy import ChatEngine
from agentevolver.rollout.tool_calls import read_tools
from agentevolver.rollout.world import Event, LiveWorld
from agentevolver.rollout.world_routes import routes
from agentevolver.types import Outcome, Step, StopReason, TrainingSample
from agentevolver.utils.heap import freeze_heap
from context_manager.chat import ChatRenderer
from context_manager.samples import SampleChoice
from context_manager.settings import ContextLimits

T = TypeVar("T")
logger = logging.getLogger(__name__)

MAX_SAMPLES = 8
# Chain differences stored in a trajectory.
DIFFERENCES = 3


@dataclass(slots=True)
class AgentAttempts:
    """Creates the attempts that an agent plays. The rollouts of a worker process share one object and its gateway.

    - `timeout_s`: time limit of the agent. It may call the model as often as it may act.
    - `world`: whether the agent acts in the environment, which then grades.
    - `train_errors`: whether to grade rollouts in which the agent failed.
    """

    agent: Agent
    renderer: ChatRenderer
    limits: ContextLimits
    timeout_s: float = 600.0
    world: bool = True
    train_errors: bool = False
    max_samples: int = MAX_SAMPLES
    sample_choice: SampleChoice = "spread"
    _server: GatewayServer | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __call__(self, given: RolloutAssignment) -> Attempt:
        return ServedAttempt(self, given)

    async def server(self) -> GatewayServer:
        """Return this process's gateway, which the first rollout starts."""
        async with self._starting:
            if self._server is None:
                server = GatewayServer()
                await server.start()
                freeze_heap()
                self._server = server
        return self._server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
            self._server = None


class ServedAttempt(Attempt):
    def __init__(self, serving: AgentAttempts, given: RolloutAssignment) -> None:
        super().__init__(given)
        means = given.means
        if isinstance(means.engine, ChatEngine):
            raise TypeError("a user's agent needs the policy's engine, not a chat model")
        self._serving = serving
        self._rollout = GatewayRollout(
            means.engine,
            serving.renderer,
            means.tool_use.format if means.tool_use is not None else None,
            serving.limits,
            given.sampling_params,
            self.instance_id,
            given.guide,
            no_think=means.policy.no_think,
            call_limits=CallLimits(calls=means.policy.max_steps),
            max_samples=serving.max_samples,
            sample_choice=serving.sample_choice,
        )
        self._world: LiveWorld | None = None
        self._posted = Result()
        self._result = Result()
        self._env_s = 0.0

    # ---- what came of it ----

    @property
    def messages(self) -> list[dict[str, Any]]:
        # The gateway sees an environment's answer in the next call, so the answers after the last call are added here.
        said, rollout = self._rollout.messages, self._rollout
        if self._world is None or not said or said[-1]["role"] != "assistant":
            return said
        return [
            *said,
            *(m for event in self._world.events if event.calls_before == rollout.calls for m in event.messages),
        ]

    @property
    def steps(self) -> list[Step]:
        """The model calls, each with the environment's messages before the next one."""
        steps = self._rollout.steps
        seen: dict[int, list[Event]] = defaultdict(list)
        for event in self._world.events if self._world is not None else ():
            seen[event.calls_before - 1].append(event)
        for place, events in seen.items():
            if not 0 <= place < len(steps):
                continue  # an action before the policy was asked
            tried = [event.tried for event in events if event.tried is not None]
            steps[place] = replace(
                steps[place],
                # The agent's version of the observation, or the environment's if no further call contains it.
                observation=steps[place].observation or "\n".join(event.observation for event in events),
                reward=sum(event.reward for event in events),
                calls=sum(tried) if tried else None,
                problems=tuple(problem for event in events for problem in event.problems),
                refused=all(event.refused for event in events),
            )
        return steps

    @property
    def acted(self) -> bool:
        return self._rollout.calls > 0

    def account(self) -> AttemptFacts:
        rollout = self._rollout
        facts = {
            "chains": rollout.chains,
            "calls": rollout.calls,
            "ignored": dict(rollout.ignored),
            "refused": dict(rollout.refused),
            "structured": rollout.structured,
            "differences": [asdict(one) for one in rollout.differences[:DIFFERENCES]],
        }
        return AttemptFacts(rollout.versions, rollout.generate_s, self._env_s, [], rollout.tools, facts)

    def samples(self) -> tuple[list[TrainingSample], dict[str, int]]:
        return self._rollout.samples(), dict(self._rollout.dropped)

    @property
    def unguided(self) -> list[dict[str, Any]]:
        return self._rollout.opening

    async def timed(self, call: Awaitable[T]) -> T:
        before = time.perf_counter()
        try:
            return await call
        finally:
            self._env_s += time.perf_counter() - before

    # ---- its course ----

    async def play(self, state: dict[str, Any]) -> tuple[StopReason, str]:
        opening = self.opening(state)
        self._world = world = self._made_world(opening, state.get("info") or {})
        query = self.task.query if self.task.query is not None else _query(state, opening)
        info = {**self.task.metadata, "info": state.get("info") or {}}
        task = replace(self.task, query=query, metadata=info)
        server = await self._serving.server()
        endpoint = server.open(self._rollout, routes(world, self._take))
        failure, timed_out = "", False
        try:
            play = self._serving.agent.play(task, endpoint, world)
            aside = task.is_validation or task.is_scout
            self._result = await PAUSE.within(play, self._serving.timeout_s, validation=aside)
        except TimeoutError:
            timed_out = True
            failure = (
                f"the agent did not end within {self._serving.timeout_s:g} s "
                "(actor_rollout_ref.rollout.agent_timeout_s)"
            )
        except OSError as error:
            failure = f"the agent could not be started: {error}"
        except AgentFailed as error:
            failure, self._result = f"the agent failed: {error}", error.result
        finally:
            server.close(endpoint)
            self.injection = self._rollout.injection
            if world is not None:
                world.close()
                self._env_s += sum(event.seconds for event in world.events)
        if self._result.score is None:
            self._result = self._posted
        return self._ended(world, failure, timed_out=timed_out)

    def _ended(self, world: LiveWorld | None, failure: str, *, timed_out: bool) -> tuple[StopReason, str]:
        """Return why the rollout ended; raises for failures other than the agent's."""
        if world is not None and world.failure is not None:
            raise world.failure
        refused, note = self._rollout.stop_reason, self._rollout.note
        if refused is StopReason.LLM_ERROR:
            raise EngineError(note)
        if refused is not None and not timed_out:
            # A call after the end of the episode is refused too; the episode itself finished.
            return (StopReason.FINISHED, "") if world is not None and world.terminated else (refused, note)
        if failure:
            return StopReason.AGENT_ERROR, failure
        if self._graded_by_number and self._result.score is None:
            return StopReason.AGENT_ERROR, (
                "the agent returned no number, and nothing else grades the task: return one in 0..1, or set "
                "actor_rollout_ref.rollout.agent_world"
            )
        used_up = world is not None and world.exhausted and not world.terminated
        # The last refusal says why an agent got no reply at all.
        return (StopReason.MAX_STEPS if used_up else StopReason.FINISHED), "" if self.acted else note

    def _made_world(self, opening: list[dict[str, Any]], info: dict[str, Any]) -> LiveWorld | None:
        if not self._serving.world:
            return None
        means, renderer = self.means, self._serving.renderer
        tool_use = means.tool_use_in(self.task.env_type)
        return LiveWorld(
            means.client,
            self.instance_id,
            opening,
            read_tools(info, self.task.env_type) if tool_use is not None else [],
            means.policy.max_steps,
            lambda text: renderer.clip(text, self._serving.limits.max_observation_tokens),
            lambda: self._rollout.calls,
            self.task.env_type,
            tool_use,
        )

    def _take(self, result: Result) -> None:
        self._posted = result

    @property
    def _graded_by_number(self) -> bool:
        judged = self.means.graders is not None and not self.task.is_validation and self.task.evaluator != "env"
        return not self._serving.world and not judged

    async def outcome(self, stop_reason: StopReason, note: str) -> Outcome | None:
        """Return the grade of the environment, of the task's grader, or of the agent itself (0 if it was stopped)."""
        if stop_reason is StopReason.AGENT_ERROR and not self._serving.train_errors:
            return None
        if not self.acted or not self._graded_by_number:
            # The policy never acted, or the environment or the task's grader decides.
            return await super().outcome(stop_reason, note)
        score = self._result.score
        if score is None:
            return Outcome(0.0, False, f"the agent returned no number: {note}")
        return Outcome(score, score >= 1.0, self._result.reason)


def _query(state: dict[str, Any], opening: list[dict[str, Any]]) -> str | None:
    said = (state.get("info") or {}).get("query")
    return str(said) if said else str(opening[-1]["content"]) if opening else None
