"""verl's agent loop, worker and manager (`rollout.agent.agent_loop_manager_class`) for this project's rollouts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, DictConfigWrap
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from advantage_processor.attributor import Attributor, judge_settings
from agentevolver.config.agent import agent_function
from agentevolver.config.asynchronous import goes_on, steps_kept
from agentevolver.config.schema import RolloutSettings, Settings, of_verl
from agentevolver.llm import LLM, Role
from agentevolver.llm.client import PolicySource
from agentevolver.llm.settings import LLMSettings
from agentevolver.rollout.agent import Agent, FunctionAgent
from agentevolver.rollout.agent_attempt import MAX_SAMPLES, AgentAttempts
from agentevolver.rollout.attempt import TaskGraders
from agentevolver.rollout.command import CommandAgent
from agentevolver.rollout.container import ContainerAgent, engine_of
from agentevolver.rollout.engine import Engine
from agentevolver.rollout.flows import flow_chooser
from agentevolver.rollout.pause import PAUSE
from agentevolver.rollout.policy import Summariser, VerlEngine, role_summariser
from agentevolver.rollout.resuming import ResumingEngine
from agentevolver.rollout.rollout import Rollout, RolloutPolicy, RolloutRunner
from agentevolver.rollout.rows import group_name, group_place, to_outputs, to_row
from agentevolver.rollout.tool_calls import ToolUse
from agentevolver.rollout.tools.formats import tool_format
from agentevolver.trainer.verl_plugin.agent_loop_manager import GIVEN_UP, WorkerManager
from agentevolver.types import RowKey, StopReason, Task, Trajectory
from agentevolver.utils import seeds
from agentevolver.utils.inflight import BOARD, Waiting, WatchedCalls
from agentevolver.utils.turn_ends import ends_by_file
from context_manager.chat import ChatRenderer
from context_manager.registry import checked_template
from env_service.client import AsyncEnvClient
from env_service.protocol import Instances
from task_manager.graders.registry import GraderContext, Graders

logger = logging.getLogger(__name__)

# Calls of the environment service that the watchdog reports.
ENV_CALLS = ("create_instance", "step", "evaluate", "release_instance")
# Rows that become ready within this time go to TransferQueue in one call, which costs milliseconds of CPU for any
# number of rows.
GATHER_S = 0.02


if TYPE_CHECKING:
    from agentevolver.rollout.guidance import Guides


@dataclass(slots=True)
class _Shared:
    settings: Settings
    runner: RolloutRunner
    # Separate slots for training (True) and validation: training rollouts paused for a validation hold their slots.
    slots: dict[bool, asyncio.Semaphore]
    eos_token_id: int
    attributor: Attributor | None
    guides: Guides | None


_shared: dict[int, _Shared] = {}


class Episode(AgentLoopBase):
    """verl's agent loop for one rollout."""

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, **_: Any) -> None:
        # verl's constructor is skipped on purpose: it builds an unused tokenisation helper per rollout.
        config: DictConfig = trainer_config.config
        key = id(config)
        if key not in _shared:
            settings = of_verl(config)
            # With deterministic vLLM, verl gives a request without a seed the replica's seed: all rollouts of a group
            # would be equal.
            seeded = settings.trainer.deterministic or bool(config.actor_rollout_ref.rollout.get("full_determinism"))
            seeded = seeded or (goes_on(config) and settings.device == "cpu")
            timeout_s = settings.rollout.step_timeout_s
            engine, aside = VerlEngine(server_manager, timeout_s, seeded=seeded), None
            if goes_on(config):
                engine = ResumingEngine(server_manager, timeout_s, seeded=seeded)
                aside = ResumingEngine(server_manager, timeout_s, seeded=seeded, validation=True)
            template_kwargs = config.data.get("apply_chat_template_kwargs")
            runner = make_runner(settings, engine, tokenizer, template_kwargs, served=engine.served, aside=aside)
            slots = {trained: asyncio.Semaphore(settings.rollout.max_env_worker) for trained in (False, True)}
            attributor = make_attributor(settings, engine.served, steps_kept(config))
            _shared[key] = _Shared(settings, runner, slots, tokenizer.eos_token_id, attributor, make_guides(settings))
        self._shared = _shared[key]

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Roll the row's task out and return its outputs in order. A failed rollout returns one masked placeholder."""
        shared = self._shared
        task = Task.from_dict(row["task"])
        validation = task.is_validation
        env_params = shared.settings.environment(task.env_type).params(validation=validation)
        rollout_id, step, seed = int(row["session_id"]), int(row["global_steps"]), shared.settings.data.seed
        group_id = self._group_id(task, row)
        guide = (
            shared.guides.guide(task, group_id, rollout_id, step, group_place(group_id))
            if shared.guides is not None
            else None
        )
        with seeds.drawing(seed, group_id, rollout_id):
            async with shared.slots[not (validation or task.is_scout)]:
                with BOARD.call("rollouts"):
                    rollout = await shared.runner.run(task, group_id, rollout_id, sampling_params, env_params, guide)
            trajectory = rollout.trajectory
            trajectory.began_step = step
            if rollout.versions:
                trajectory.min_version, trajectory.max_version = min(rollout.versions), max(rollout.versions)
            if shared.guides is not None:
                trajectory.guidance = shared.guides.used(rollout, wanted=guide is not None)
            if shared.attributor is not None and not validation and not task.is_scout:
                # After the slot is freed: the next episode runs while the judge reads this one.
                trajectory.attribution = await shared.attributor.label_steps(trajectory, step=step)
        return to_outputs(rollout, shared.eos_token_id, step - 1, validation=validation)

    def given_up(self, error: str, stop_reason: StopReason = StopReason.ENV_ERROR, **row: Any) -> list[AgentLoopOutput]:
        """Return the placeholder of an abandoned rollout."""
        task, step, tries = Task.from_dict(row["task"]), int(row["global_steps"]), self._shared.runner.max_tries
        names = self._group_id(task, row), int(row["session_id"])
        trajectory = Trajectory(task, *names, [], [], stop_reason, None, tries, error, 0.0)
        trajectory.began_step = step
        eos = self._shared.eos_token_id
        return to_outputs(Rollout(trajectory, []), eos, step - 1, validation=task.is_validation)

    def _group_id(self, task: Task, row: Mapping[str, Any]) -> str:
        # verl's ids for validation rows are random, so a deterministic one is derived.
        if not task.is_validation:
            return str(row["uid"])
        seed, step = self._shared.settings.data.seed, int(row["global_steps"])
        return group_name(seed, "validation", step, int(row["index"]), task.task_id)


def make_guides(settings: Settings) -> Guides | None:
    """Return the source of guidance, or None if no rollout is guided. The trainer must have started the actor."""
    if not settings.exp_manager.guides:
        return None
    # Imported here: runs without guidance need no index in every worker.
    from agentevolver.rollout.guidance import Guides
    from experience_manager.actor import Guide, find_actor

    source = Guide(find_actor(settings.experiment_dir), settings.exp_manager)
    return Guides(settings.exp_manager, source, settings.sizes.n, settings.sizes.val_n)


def make_attributor(settings: Settings, policy: PolicySource | None = None, steps_kept: int = 1) -> Attributor | None:
    """Return the judge of step labels, or None if not configured."""
    if Role.ATTRIBUTOR not in settings.roles:
        return None
    llm = judge_settings(_llm_settings(settings), settings.attribution)
    return Attributor(
        settings.attribution,
        LLM(llm, policy=policy),
        group_size=settings.sizes.n,
        steps_kept=steps_kept,
        endpoint=llm.endpoint(Role.ATTRIBUTOR),
    )


def make_graders(settings: Settings, policy: PolicySource | None = None) -> Graders | None:
    """Return the graders of training tasks, or None if the environment grades all."""
    if not settings.task_manager.grades_otherwise:
        return None
    llm = LLM(_llm_settings(settings), policy=policy) if Role.JUDGE in settings.roles else None
    section = settings.task_manager
    return Graders(GraderContext(section.grader, llm, settings.rollout.sparse, section.max_observation_chars, settings))


def make_summariser(settings: Settings, policy: PolicySource | None = None) -> Summariser | None:
    """Return the writer of context summaries, or None if not configured."""
    if settings.rollout.summary_by != "summariser":
        return None
    return role_summariser(LLM(_llm_settings(settings), policy=policy))


def _llm_settings(settings: Settings) -> LLMSettings:
    return settings.llm.model_copy(update={"ledger": settings.usage_ledger})


def make_runner(
    settings: Settings,
    engine: Engine,
    tokenizer: Any,
    template_kwargs: Any = None,
    *,
    served: PolicySource | None = None,
    graders: TaskGraders | None = None,
    client: Instances | None = None,
    aside: Engine | None = None,
) -> RolloutRunner:
    """Return the rollout runner of a worker process. Raises ConfigError for an unusable template or flow.

    `served` is the endpoint of roles that the policy plays; `aside` samples the rollouts that are not trained on.
    """
    rollout, service = settings.rollout, settings.env_service
    tool_use = make_tool_use(rollout, tokenizer)
    named = ends_by_file(tokenizer).values()
    ends = (*chain.from_iterable(named), *(tool_use.ends if tool_use is not None else ()))
    renderer = ChatRenderer(tokenizer, dict(template_kwargs or {}), ends)
    policy = RolloutPolicy(
        max_steps=rollout.max_steps,
        max_tries=rollout.max_rollout_tries,
        sparse=rollout.sparse,
        unavailable_timeout_s=service.unavailable_timeout_s,
        no_think=rollout.use_qwen3,
        by_text=frozenset(one.env_type for one in settings.environments if not one.native_tools),
    )
    template, limits = checked_template(rollout), settings.context_limits
    asked = f"environment {', '.join(service.env_types)}:"
    client = client or AsyncEnvClient(service.env_url, timeout_s=service.timeout_s)
    environments: Any = WatchedCalls(client, asked, ENV_CALLS)
    if graders is None:
        graders = make_graders(settings, served)
    summariser = make_summariser(settings, served)
    watched: Any = WatchedCalls(engine, "the policy:", ("generate",))
    watched_aside: Any = None if aside is None else WatchedCalls(aside, "the policy:", ("generate",))
    return RolloutRunner(
        policy,
        environments,
        watched,
        lambda: template(renderer, limits, rollout),
        flow_chooser(rollout),
        summariser,
        graders,
        tool_use=tool_use,
        new_attempt=make_serving(settings, renderer),
        aside=watched_aside,
    )


def make_serving(settings: Settings, renderer: ChatRenderer) -> AgentAttempts | None:
    """Return what plays rollouts with the user's agent, or None if a flow plays. Raises ConfigError for an unusable
    function."""
    rollout = settings.rollout
    if not rollout.is_served:
        return None
    agent: Agent
    if rollout.agent_function is not None:
        agent = FunctionAgent(agent_function(rollout.agent_function))
    elif rollout.agent_container is not None:
        engine = engine_of(rollout.agent_container)
        agent = ContainerAgent(rollout.agent_command or (), engine, rollout.agent_timeout_s)
    else:
        agent = CommandAgent(rollout.agent_command or ())
    return AgentAttempts(
        agent,
        renderer,
        settings.context_limits,
        timeout_s=rollout.agent_timeout_s,
        world=rollout.agent_world,
        train_errors=rollout.train_agent_errors,
        max_samples=rollout.max_samples_per_trajectory or MAX_SAMPLES,
        sample_choice=rollout.sample_choice or "spread",
    )


def make_tool_use(rollout: RolloutSettings, tokenizer: Any) -> ToolUse | None:
    """Return the reader of native tool calls, or None if agents act by text. Raises ConfigError if no format fits."""
    if rollout.tool_format == "none":
        return None
    return ToolUse(tool_format(rollout.tool_format, tokenizer), rollout.max_tool_calls)


Row = tuple[str, dict[str, Any], dict[str, Any]]
_VerlWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class


class RowWriter:
    """Writes rows into TransferQueue, with one call for rows that arrive together."""

    def __init__(self, gather_s: float = GATHER_S) -> None:
        self._gather_s = gather_s
        self._waiting: dict[str, tuple[list[Row], asyncio.Task[None]]] = {}

    async def put(self, rows: Sequence[Row], partition_id: str) -> None:
        """Store rows (key, fields, tag) and return when they are stored. Raises TransferQueue's errors."""
        if partition_id not in self._waiting:
            self._waiting[partition_id] = ([], asyncio.create_task(self._flush_soon(partition_id)))
        batch, flushed = self._waiting[partition_id]
        batch.extend(rows)
        # Several callers wait for one flush: a cancelled caller must not cancel it.
        await asyncio.shield(flushed)

    async def _flush_soon(self, partition_id: str) -> None:
        await asyncio.sleep(self._gather_s)
        batch, _ = self._waiting.pop(partition_id)
        keys, fields, tags = zip(*batch, strict=True)
        await tq.async_kv_batch_put(
            keys=list(keys), fields=list_of_dict_to_tensordict(list(fields)), tags=list(tags), partition_id=partition_id
        )


class EpisodeWorker(_VerlWorker):
    """Ray actor that runs many rollouts at once on one event loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows = RowWriter()

    async def outlive(self) -> None:
        """Never return: the call ends with this process, which tells the trainer."""
        await asyncio.Event().wait()

    async def waiting(self) -> Waiting:
        return BOARD.waiting()

    async def pause(self, asleep: bool | None = None, validating: bool | None = None) -> None:
        PAUSE.set(asleep=asleep, validating=validating)

    async def _run_agent_loop(
        self,
        sampling_params: dict[str, Any],
        trajectory: dict[str, Any],
        *,
        agent_name: str,
        trace: bool = True,
        **row: Any,
    ) -> None:
        episode = Episode(
            trainer_config=DictConfigWrap(self.config), server_manager=self.llm_client, tokenizer=self.tokenizer
        )
        if (error := row.pop(GIVEN_UP, None)) is not None:
            outputs = episode.given_up(str(error), **row)
        else:
            try:
                outputs = await episode.run(sampling_params, **row)
            except Exception as error:
                # An error of a flow, template, grader or guide. verl would drop the rollout without a row, so no record
                # would contain it and no guard count it.
                logger.exception("rollout %s of group %s failed", row["session_id"], row["uid"])
                outputs = episode.given_up(f"{type(error).__name__}: {error}", StopReason.AGENT_ERROR, **row)
        await self._agent_loop_postprocess(outputs, trajectory["validate"], **row)

    async def _agent_loop_postprocess(self, output: list[AgentLoopOutput], validate: bool, **row: Any) -> None:
        keys = [str(RowKey(str(row["uid"]), row["session_id"], index)) for index in range(len(output))]
        rows = [(key, *to_row(one, row)) for key, one in zip(keys, output, strict=True)]
        await self._rows.put(rows, "val" if validate else "train")


class EpisodeManager(WorkerManager):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(EpisodeWorker)
