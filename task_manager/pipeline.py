"""Self-questioning pipeline: explore, synthesise, verify, deduplicate, keep; concurrent, and resumable at any point.

Explorations run in blocks. A block's proposals are compared with what was kept before it, and are kept in the plan's
order while the next block is explored. So the tasks do not depend on timing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from agentevolver.llm.errors import BudgetExceeded, LLMError
from agentevolver.types import Task
from agentevolver.utils import seeds
from env_service.protocol import EnvCrashed, EnvServiceError, EnvTimeout, EnvUnavailable, Instances
from task_manager.actions import PlainFormat
from task_manager.explore import Exploration, Explorer, StepLog, Strategy, kind_of, replayed
from task_manager.graders.environment import CHECK_KEY
from task_manager.journal import PipelineJournal, PipelinePlan
from task_manager.known_queries import KnownQueries
from task_manager.report import Funnel, tally
from task_manager.settings import WITHOUT_JUDGE, GraderSettings, TaskManagerSettings
from task_manager.synthesize import Synthesis, Synthesiser, TaskProposal
from task_manager.verify import Verifier
from task_manager.world import SeedWorld

logger = logging.getLogger(__name__)
T = TypeVar("T")

ENV_TRIES = 3
# Fewer failures are too small a sample to end the run.
LEAST_FAILURES = 8


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A verified proposal: its index within the exploration, the verdict, and the journal keys it depends on."""

    index: int
    exploration: Exploration
    proposal: TaskProposal
    verdict: Mapping[str, Any]
    keys: dict[str, str]


class QuestioningFailed(RuntimeError):
    """No tasks can be made; the message says why. Finished parts are in the journal."""


class TaskPipeline:
    """Runs the jobs of a plan.

    Each finished part goes into the journal before the next one begins. A failed job is counted and left for the next
    run; a spent budget ends the run early.

    Args:
        pool: queries to compare with; at first only those of the evaluation.
        known: existing tasks that must not be made again. New ids continue after theirs.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        settings: TaskManagerSettings,
        journal: PipelineJournal,
        client: Instances,
        *,
        explorer: Explorer,
        synthesiser: Synthesiser,
        verifier: Verifier,
        strategy: Strategy,
        fmt: PlainFormat,
        pool: KnownQueries,
        env_params: Mapping[str, Any] | None = None,
        known: Sequence[Task] = (),
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._journal = journal
        self._client = client
        self._explorer = explorer
        self._synthesiser = synthesiser
        self._verifier = verifier
        self._strategy = strategy
        self._format = fmt
        self._pool = pool
        self._env_params = dict(env_params or {})
        self._known = list(known)
        self._exploring = asyncio.Semaphore(settings.num_explore_threads)
        self._verifying = asyncio.Semaphore(settings.num_explore_threads)
        self._tasks: list[Task] = []
        self._next_number: dict[str, int] = {}
        self._finished = 0
        self._failures: list[str] = []
        self._kinds: Counter[str] = Counter()
        self._fatal: QuestioningFailed | None = None
        self._budget_spent = False

    @property
    def tasks(self) -> list[Task]:
        return list(self._tasks)

    @property
    def budget_spent(self) -> bool:
        return self._budget_spent

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(self._failures)

    async def run(
        self, on_progress: Callable[[int, int, int], None] | None = None, *, explore_only: bool = False
    ) -> list[Task]:
        """Finish the plan and return all kept tasks in order.

        `on_progress` receives (finished jobs, all jobs, kept tasks). Raises QuestioningFailed if too many jobs fail or
        the environment service stays unreachable.
        """
        await self._recall()
        jobs = list(self._plan.jobs())
        size = self._settings.num_explore_threads
        blocks = [jobs[start : start + size] for start in range(0, len(jobs), size)]
        ahead: list[asyncio.Task[Exploration]] = self._begin(blocks[:1])
        told = 0
        try:
            for place, block in enumerate(blocks):
                if self._is_done():
                    break
                # The next block explores while this one is verified and kept.
                explorations, ahead = ahead, self._begin(blocks[place + 1 : place + 2])
                prepared = [
                    self._prepared(*job, task, explore_only) for job, task in zip(block, explorations, strict=True)
                ]
                for candidates in await asyncio.gather(*prepared):
                    await self._keep_new(candidates)
                    told += 1
                    if on_progress is not None:
                        on_progress(told, len(jobs), len(self._tasks))
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)
        if self._fatal is not None:
            raise self._fatal
        return self.tasks

    def funnel(self) -> Funnel:
        funnel = tally(self._journal.records, self._plan)
        funnel.failed, funnel.failures = len(self._failures), Counter(self._kinds)
        return funnel

    async def _recall(self) -> None:
        # The strategy must have seen all earlier actions, or a resumed run would explore differently.
        for seed, number in self._plan.jobs() if self._strategy.remembers else ():
            recorded = self._journal.get("exploration", self._plan.exploration(seed, number))
            if recorded is not None:
                known = Exploration.from_dict(recorded)
                replayed(self._strategy, known.world, known.steps)
        kept = [
            value["task"]
            for _, value in self._journal.items("decision")
            if value["run"] == self._plan.run and value["task"]
        ]
        self._tasks = [Task.from_dict(task) for task in kept]
        existing = [*self._known, *self._tasks]
        for task in existing:
            seed, _, taken = task.task_id.rpartition("#")
            if taken.isdecimal():  # a task of a user's file may have any id
                self._next_number[seed] = max(self._next_number.get(seed, 0), int(taken) + 1)
        # Tasks made for a weakness must not be near copies of the tasks that revealed it.
        failed = [query for one in self._settings.focus for query in one.not_like]
        await self._pool.load([*(str(task.query) for task in existing), *failed])

    def _begin(self, blocks: Sequence[Sequence[tuple[str, int]]]) -> list[asyncio.Task[Exploration]]:
        return [asyncio.create_task(self._explored(seed, number)) for block in blocks for seed, number in block]

    def _is_done(self) -> bool:
        return self._fatal is not None or self._budget_spent or self._is_enough()

    def _is_enough(self) -> bool:
        target = self._settings.target_tasks
        return target is not None and len(self._tasks) >= target

    async def _prepared(
        self, seed: str, number: int, exploration: asyncio.Task[Exploration], explore_only: bool
    ) -> list[_Candidate]:
        candidates: list[_Candidate] = []
        try:
            explored = await exploration
            if not explore_only:
                await self._questioned(explored, self._plan.exploration(seed, number), candidates)
        except BudgetExceeded as error:
            logger.warning("stopped early: %s", error)
            self._budget_spent = True
        except (EnvServiceError, LLMError) as error:
            # One failed job must not end the run: the next run repeats it.
            self._fail(f"exploration {number} of {seed}", error)
        finally:
            self._finished += 1
        return sorted(candidates, key=lambda candidate: candidate.index)

    def _fail(self, what: str, error: Exception) -> None:
        self._failures.append(f"{what}: {error}")
        self._kinds[kind_of(error)] += 1
        logger.warning("%s failed: %s", what, error)
        # `_finished` does not include this job yet.
        share = len(self._failures) / (self._finished + 1)
        if len(self._failures) >= LEAST_FAILURES and share > self._settings.max_failed_share and self._fatal is None:
            self._fatal = QuestioningFailed(
                f"{len(self._failures)} of {self._finished + 1} explorations failed "
                f"({', '.join(f'{kind} {count}' for kind, count in self._kinds.most_common())}), more than "
                f"{self._settings.max_failed_share:.0%} of them; finished parts are kept; last failure: {error}"
            )

    async def _explored(self, seed: str, number: int) -> Exploration:
        key = self._plan.exploration(seed, number)
        recorded = self._journal.get("exploration", key)
        if recorded is not None:
            return Exploration.from_dict(recorded)
        world = SeedWorld(self._plan.env_type, seed, self._env_params)
        log = StepLog(self._journal.folder / "under_way" / f"{key}.jsonl")
        replayed(self._strategy, world, log.steps)
        async with self._exploring:
            exploration = await self._with_env_retries(lambda: self._explorer.explore(world, number, log))
        self._journal.put("exploration", key, exploration.to_dict())
        log.remove()
        return exploration

    async def _questioned(self, exploration: Exploration, exploration_key: str, candidates: list[_Candidate]) -> None:
        key = self._plan.synthesis(exploration_key)
        recorded = self._journal.get("synthesis", key)
        if recorded is None:
            existing = await self._neighbours(exploration)
            with seeds.drawing(0, "synthesise", exploration.world.seed_task_id, exploration.number):
                recorded = (await self._synthesiser.propose(exploration, existing)).to_dict()
            self._journal.put("synthesis", key, recorded)
        proposals = Synthesis.from_dict(recorded).proposals
        results = await asyncio.gather(
            *(
                self._verified(exploration, proposal, exploration_key, key, index, candidates)
                for index, proposal in enumerate(proposals)
            ),
            return_exceptions=True,
        )
        # Only now, so that a failure does not cancel its siblings, whose verdicts go into the journal.
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _neighbours(self, exploration: Exploration) -> list[str]:
        wanted = self._settings.synthesis.shown_neighbours
        told = " ".join(step.observation for step in exploration.steps if not step.refused)[:1000]
        return await self._pool.neighbours(told, wanted) if told.strip() else []

    async def _verified(
        self,
        exploration: Exploration,
        proposal: TaskProposal,
        exploration_key: str,
        synthesis: str,
        index: int,
        candidates: list[_Candidate],
    ) -> None:
        verdict_key = self._plan.verdict(synthesis, index)
        decision_key = self._plan.decision(verdict_key)
        if self._journal.get("decision", decision_key) is not None:
            return
        async with self._verifying:
            if self._is_done():
                return
            world = exploration.world
            recorded = self._journal.get("verdict", verdict_key)
            if recorded is None:
                # Verification costs model calls, so known duplicates are dropped first.
                if (clash := await self._pool.clash(proposal.query)) is not None:
                    self._decide(decision_key, str(clash), None)
                    return
                with seeds.drawing(0, "verify", world.seed_task_id, exploration.number, index):
                    verdict = await self._with_env_retries(
                        lambda: self._verifier.verify(world, proposal, exploration.opening)
                    )
                recorded = verdict.to_dict()
                self._journal.put("verdict", verdict_key, recorded)
        if recorded["dropped_by"] is None:
            keys = {
                "exploration": exploration_key,
                "synthesis": synthesis,
                "verdict": verdict_key,
                "decision": decision_key,
            }
            candidates.append(_Candidate(index, exploration, proposal, recorded, keys))

    async def _keep_new(self, candidates: Sequence[_Candidate]) -> None:
        for one in candidates:
            if self._is_enough():
                return
            clash = await self._pool.take(one.proposal.query)
            task = self._task(one.exploration, one.proposal, one.verdict, one.keys) if clash is None else None
            self._decide(one.keys["decision"], "" if clash is None else str(clash), task)

    def _decide(self, key: str, reason: str, task: Task | None) -> None:
        self._journal.put(
            "decision", key, {"run": self._plan.run, "reason": reason, "task": task.to_dict() if task else None}
        )
        if task is not None:
            self._tasks.append(task)

    def _task(
        self, exploration: Exploration, proposal: TaskProposal, verdict: Mapping[str, Any], keys: dict[str, str]
    ) -> Task:
        seed = exploration.world.seed_task_id
        number = self._next_number.get(seed, 0)
        self._next_number[seed] = number + 1
        check = verdict["check"]
        solution = list(verdict.get("solution") or proposal.solution)
        return Task(
            task_id=f"{seed}#{number}",
            env_type=self._plan.env_type,
            open_query=True,
            query=proposal.query,
            ground_truth="\n".join(solution),
            evaluator=evaluator_for(self._settings.grader, check),
            metadata={
                "split": "train",
                "validation": False,
                "synthetic": True,
                "seed_task_id": seed,
                "solution": solution,
                "confidence": proposal.confidence,
                "env_params": self._format.task_params(len(solution), self._env_params),
                CHECK_KEY: check,
                "origin": {"run": self._plan.run, "exploration_number": exploration.number, **keys},
            },
        )

    async def _with_env_retries(self, work: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(1, ENV_TRIES + 1):
            try:
                return await work()
            except EnvUnavailable as error:
                if attempt == ENV_TRIES or not await self._service_is_back():
                    self._fatal = self._fatal or QuestioningFailed(f"the environment service is unreachable: {error}")
                    raise
            except (EnvCrashed, EnvTimeout) as error:
                if attempt == ENV_TRIES:
                    raise
                logger.info("attempt %d: %s", attempt, error)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _service_is_back(self) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.unavailable_timeout_s
        while self._fatal is None:
            if await self._client.health():
                return True
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(0.5)
        return False


def evaluator_for(settings: GraderSettings, check: Mapping[str, Any] | None) -> str:
    """Return a synthetic task's grader: the state check if it has one, with a judge for answers in prose."""
    if settings.synthetic_grader != "auto":
        return settings.synthetic_grader
    if check is None:
        return settings.fallback_grader
    return "state-llm" if check.get("prose") and settings.fallback_grader not in WITHOUT_JUDGE else "state"
