"""Experience manager of a run: guidance for rollouts, and background distillation of finished ones.

    guide     before a guided rollout; one answer per task and step, shared by the group
    injected  after the guidance was put into a conversation
    record_step, warm_start  with finished rollouts: counters, distillation in the background, pruning

Failures never reach a rollout or a step: they become an unguided rollout with a `problem`, and a metric. Validation
rollouts are neither counted nor distilled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentevolver.llm.embeddings import EncoderUnavailable
from agentevolver.types import Trajectory
from agentevolver.utils import seeds
from agentevolver.utils.files import move, write_json
from experience_manager.attempts import Group, PastAttempt, group_by_task, read_attempts
from experience_manager.backend import Backend, Settled
from experience_manager.distill import Distilled
from experience_manager.errors import ExperienceError, StoreCorrupt
from experience_manager.guide import Guidance, keeps_guidance
from experience_manager.question import Question, Retrieved
from experience_manager.settings import ExperienceSettings

logger = logging.getLogger(__name__)
FAILURES = (ExperienceError, EncoderUnavailable)
# Injections within this time are counted in one transaction.
GATHER_S = 0.05
# Timeout of `record_step` for the workers' `injected` calls: a dead worker never calls.
TOLD_WITHIN_S = 2.0
# Files of the experience manager in a checkpoint.
POOL_COPY, STATE = "experience.sqlite", "experience.json"
# Least number of steps whose answers are kept.
KEPT_STEPS = 2
# Distils a group of a training step.
Work = Callable[[Group, int | None], Awaitable[Distilled]]
# Stores a distilled group's experiences.
Keep = Callable[[Distilled], Awaitable[None]]
# True if a group was distilled without lost calls.
Receipt = asyncio.Future[bool]


class DistillQueue:
    """Bounded background queue of groups: `work` runs `concurrency` at a time, `keep` in the order of the groups.

    `submit` drops and counts groups beyond `capacity`. Once the model budget is spent, all groups are. An error loses
    only its own group.
    """

    def __init__(self, work: Work, keep: Keep | None = None, *, capacity: int, concurrency: int) -> None:
        self._work = work
        self._keep = keep
        self._last: asyncio.Event | None = None
        self._concurrency = concurrency
        self._queue: asyncio.Queue[tuple[Group, int | None, Receipt]] = asyncio.Queue(capacity)
        self._workers: list[asyncio.Task[None]] = []
        self._at_work = 0
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self.exhausted = False

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def submit(self, groups: Iterable[Group], step: int | None = None) -> int:
        """Queue groups without waiting; return how many fitted."""
        taken = 0
        for group in groups:
            if self.exhausted:
                self.counts["over_budget"] += 1
                continue
            try:
                self._queue.put_nowait((group, step, _receipt()))
                taken += 1
            except asyncio.QueueFull:
                self.counts["dropped"] += 1
        self._ensure_workers()
        return taken

    async def put(self, group: Group, step: int | None = None) -> Receipt:
        """Queue a group, waiting for room. The future is True if the group was distilled and no model call was lost."""
        self._ensure_workers()
        receipt = _receipt()
        if self.exhausted:
            self.counts["over_budget"] += 1
            receipt.set_result(False)
        else:
            await self._queue.put((group, step, receipt))
        return receipt

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until the queue is empty and idle; return False on timeout."""
        try:
            await asyncio.wait_for(self._queue.join(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = 0.0) -> None:
        if timeout_s > 0:
            await self.drain(timeout_s)
        left = self.waiting + self._at_work
        if left:
            self.counts["dropped"] += left
            logger.warning("%d groups were not distilled before the end", left)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers = []

    def _ensure_workers(self) -> None:
        self._workers = [worker for worker in self._workers if not worker.done()]
        missing = self._concurrency - len(self._workers)
        self._workers += [asyncio.create_task(self._serve()) for _ in range(missing)]

    async def _distilled(self, group: Group, step: int | None) -> Distilled | None:
        if self.exhausted:
            self.counts["over_budget"] += 1
            return None
        try:
            distilled = await self._work(group, step)
        except Exception as error:
            self._failed(error)
            return None
        self.exhausted = self.exhausted or distilled.exhausted
        return distilled

    async def _kept(self, distilled: Distilled) -> bool:
        try:
            if self._keep is not None:
                await self._keep(distilled)
        except Exception as error:
            self._failed(error)
            return False
        self.counts.update(distilled.counts)
        return not distilled.interrupted

    def _failed(self, error: Exception) -> None:
        # An error costs this group, never the training.
        self.counts["failed_groups"] += 1
        logger.warning("a group could not be distilled: %s: %s", type(error).__name__, error)

    async def _serve(self) -> None:
        while True:
            group, step, receipt = await self._queue.get()
            whole = False
            # No await between `get` and here, so turns follow the order of the queue.
            before, turn_is_over = self._last, asyncio.Event()
            self._last = turn_is_over
            started = time.perf_counter()
            self._at_work += 1
            try:
                distilled = await self._distilled(group, step)
                if before is not None:
                    await before.wait()
                if distilled is not None:
                    whole = await self._kept(distilled)
            finally:
                if not receipt.done():
                    receipt.set_result(whole)
                turn_is_over.set()
                self._at_work -= 1
                self.seconds += time.perf_counter() - started
                self._queue.task_done()


def _receipt() -> Receipt:
    return asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True)
class Filling:
    metrics: dict[str, float]
    undistilled: tuple[str, ...] = ()  # ids of tasks with lost model calls


class ExperienceManager:
    """Guides rollouts from the pool and fills it from them. Belongs to one event loop."""

    def __init__(
        self, settings: ExperienceSettings, backend: Backend, *, seed: int = 0, steps_kept: int = KEPT_STEPS
    ) -> None:
        """`steps_kept`: number of training steps in which a group may be rolled out."""
        self.settings = settings
        self.backend = backend
        # The seeds of the summariser's calls follow from the run's.
        self._seed = seed
        self._steps_kept = max(KEPT_STEPS, steps_kept)
        options = settings.distillation
        self.background = DistillQueue(
            self._distil, backend.keep, capacity=options.queue_groups, concurrency=options.concurrency
        )
        self._answers: dict[tuple[bool, int, int, str, str, str], asyncio.Task[Guidance]] = {}
        self._waiting: list[str] = []
        self._flush: asyncio.Task[None] | None = None
        self._counts: Counter[str] = Counter()
        self._costs: list[float] = []
        self._told: set[str] = set()
        self._summary_s = 0.0

    async def guide(self, question: Question) -> Guidance:
        """Return a task's guidance, the same for all rollouts of its group. Raises nothing but cancellation."""
        _, task = question.opening_and_task
        key = (question.validation, question.step, question.place, question.env_type, question.task_id, task)
        if key not in self._answers:
            self._forget_before(question.step)
            self._answers[key] = asyncio.create_task(self._answer(question))
        return await asyncio.shield(self._answers[key])

    async def injected(self, experience_ids: Iterable[str], *, validation: bool = False) -> None:
        """Count an injection; the store is updated soon after, for several at once."""
        self._counts["guided_val_rollouts" if validation else "guided_rollouts"] += 1
        if validation:
            return
        self._waiting += experience_ids
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._count_soon())

    async def record_step(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Record a finished step's rollouts; return the metrics since the last call."""
        trajectories = [one for one in trajectories if not one.task.is_validation]
        attempts = read_attempts(trajectories, self.settings.success_threshold)
        await self._told_of(sum(one.guided for one in trajectories))
        await self._flushed()
        await self._guarded(self.backend.settle(_settled(trajectories, attempts)), "settle_errors")
        ranked = await self._guarded(self.backend.record(step, trajectories, attempts), "credit_errors") or {}
        reme, pruning = self.settings.reme, self.settings.pruning
        if pruning.every_steps and step % pruning.every_steps == 0:
            self._counts["pruned"] += await self._guarded(self.backend.prune(), "prune_errors") or 0
        # Read before this step's groups are queued, or the metrics would depend on timing.
        metrics = await self.metrics() | {f"exp_manager/{name}": value for name, value in ranked.items()}
        if reme.enable_summarizer and reme.updated_freq and step % reme.updated_freq == 0:
            self.background.submit(self._groups(attempts), step)
        return metrics

    async def warm_start(self, trajectories: Sequence[Trajectory]) -> Filling:
        """Fill the pool from rollouts; return once all groups are distilled or have failed."""
        receipts: list[tuple[Group, Receipt]] = []
        for group in self._groups(read_attempts(trajectories, self.settings.success_threshold)):
            receipts.append((group, await self.background.put(group, 0)))
        await self.background.drain()
        left = (attempt.task_id for group, receipt in receipts if not receipt.result() for attempt in group)
        return Filling(await self.metrics(), tuple(dict.fromkeys(left)))

    async def metrics(self) -> dict[str, float]:
        """Return events since the last call and the state of pool and queue. Distillation counts are totals."""
        size = await self._guarded(self.backend.size(), "size_errors")
        counts, self._counts = self._counts, Counter()
        costs, self._costs = self._costs, []
        summary_s, self._summary_s = self.background.seconds - self._summary_s, self.background.seconds
        out = {
            f"exp_manager/{name}": float(counts[name])
            for name in sorted({*counts, "guided_rollouts", "retrievals", "retrieval_errors"})
        }
        out |= {f"exp_manager/distil/{name}": float(count) for name, count in sorted(self.background.counts.items())}
        out |= {"exp_manager/distil/waiting": float(self.background.waiting), "exp_manager/summary": summary_s}
        if size is not None:
            out["exp_manager/pool_size"] = float(size)
        if costs:
            out |= {
                "exp_manager/context_cost_avg": sum(costs) / len(costs),
                "exp_manager/context_cost_max": max(costs),
                "exp_manager/context_cost_min": min(costs),
            }
        return out

    async def settled(self) -> None:
        await self._flushed()
        await self.background.drain()

    async def save(self, folder: Path) -> None:
        """Write pool and counts into a folder, each file atomically. Raises ExperienceError, OSError."""
        await self.settled()
        draft = folder / f".{POOL_COPY}.{os.getpid()}"
        draft.unlink(missing_ok=True)
        try:
            if await self.backend.copy_to(draft):
                await asyncio.to_thread(move, draft, folder / POOL_COPY)
        finally:
            draft.unlink(missing_ok=True)
        state = {
            "counts": self._counts,
            "costs": self._costs,
            "distilled": self.background.counts,
            "seconds": self.background.seconds,
        }
        write_json(folder / STATE, state | {"reported_s": self._summary_s})

    async def restore(self, folder: Path, aside: Path) -> bool:
        """Restore pool and counts, saving a pool that differs to `aside`. Return False if the folder holds no state.
        Raises ExperienceError, OSError.
        """
        if not (folder / STATE).exists():
            return False
        try:
            state = orjson.loads((folder / STATE).read_bytes())
            counts, costs, distilled = Counter(state["counts"]), list(state["costs"]), Counter(state["distilled"])
            seconds, reported_s = float(state["seconds"]), float(state["reported_s"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(f"{folder / STATE} is damaged ({type(error).__name__}: {error})") from error
        if (folder / POOL_COPY).exists():
            await self.backend.restore(folder / POOL_COPY, aside)
        self._counts, self._costs, self._summary_s = counts, costs, reported_s
        self.background.counts, self.background.seconds = distilled, seconds
        return True

    async def start_over(self) -> None:
        await self.backend.start_over()

    async def aclose(self, timeout_s: float = 60.0) -> None:
        """Count and distil pending work until the timeout, then close the pool."""
        await self._flushed()
        await self.background.close(timeout_s)
        for answer in self._answers.values():
            answer.cancel()
        await asyncio.gather(*self._answers.values(), return_exceptions=True)
        await self._guarded(self.backend.aclose(), "close_errors")

    async def _distil(self, group: Group, step: int | None) -> Distilled:
        with seeds.drawing(self._seed, "distil", step or 0, *(attempt.trajectory_id for attempt in group)):
            return await self.backend.distil(group, step)

    async def _answer(self, question: Question) -> Guidance:
        settings, started = self.settings, time.perf_counter()
        keep = not question.validation and keeps_guidance(
            settings.train_sample_mode, settings.train_sample_keepratio, question.place
        )
        self._counts["retrievals"] += 1
        try:
            with seeds.drawing(
                self._seed, "guide", question.validation, question.step, question.place, question.task_id
            ):
                found = await asyncio.wait_for(self.backend.retrieve(question), settings.retrieval.timeout_s)
        except TimeoutError:
            return self._failed(f"no answer within {self.settings.retrieval.timeout_s:g} s")
        except FAILURES as error:
            return self._failed(str(error))
        except Exception as error:
            # An error costs this task its guidance, never the run.
            return self._failed(f"{type(error).__name__}: {error}", error)
        self._costs.append(time.perf_counter() - started)
        return self._guidance(found, keep)

    def _guidance(self, found: Retrieved, keep: bool) -> Guidance:
        for note in found.notes:
            self._counts[note] += 1
        if not found.text.strip():
            self._counts["retrieved_empty"] += 1
            return Guidance(problem="empty")
        return Guidance(found.text, tuple(experience.id for experience in found.experiences), keep)

    def _failed(self, problem: str, fault: Exception | None = None) -> Guidance:
        self._counts["retrieval_errors"] += 1
        self._warn_once(f"rollouts go on without guidance: {problem}", fault)
        return Guidance(problem=problem)

    def _warn_once(self, message: str, fault: Exception | None = None) -> None:
        # An outage repeats its error for every task of every step.
        if message not in self._told:
            self._told.add(message)
            logger.warning("%s", message, exc_info=fault)

    def _forget_before(self, step: int) -> None:
        old = [key for key, answer in self._answers.items() if key[1] <= step - self._steps_kept and answer.done()]
        for key in old:
            del self._answers[key]

    def _groups(self, attempts: list[PastAttempt]) -> list[list[PastAttempt]]:
        if self.settings.distils_whole_steps:
            names = dict.fromkeys(attempt.env_type for attempt in attempts)
            return [[attempt for attempt in attempts if attempt.env_type == name] for name in names]
        return group_by_task(attempts, self.settings.summary_batch_size)

    async def _told_of(self, guided: int) -> None:
        # The rollout workers' `injected` calls may arrive after the trainer's `record_step`.
        deadline = time.monotonic() + TOLD_WITHIN_S
        while self._counts["guided_rollouts"] < guided and time.monotonic() < deadline:
            await asyncio.sleep(GATHER_S)

    async def _count_soon(self) -> None:
        await asyncio.sleep(GATHER_S)
        # Injections that arrive during the count start no task of their own, hence the loop.
        while self._waiting:
            ids, self._waiting = self._waiting, []
            await self._guarded(self.backend.used(ids), "use_errors")

    async def _flushed(self) -> None:
        while self._flush is not None and not self._flush.done():
            await asyncio.shield(self._flush)

    async def _guarded(self, call: Any, name: str) -> Any:
        try:
            return await call
        except FAILURES as error:
            self._warn_once(str(error))
        except Exception as error:
            self._warn_once(f"{type(error).__name__}: {error}", error)
        self._counts[name] += 1
        return None


def _settled(trajectories: Sequence[Trajectory], attempts: Sequence[PastAttempt]) -> list[Settled]:
    happened = {attempt.trajectory_id: attempt for attempt in attempts}
    siblings: dict[str, list[bool]] = {}
    for attempt in attempts:
        if not attempt.guided:
            siblings.setdefault(attempt.group_id, []).append(attempt.success)
    settled = []
    for trajectory in trajectories:
        if trajectory.guidance is None or not trajectory.guided:
            continue
        ids, done = trajectory.guidance.experience_ids, happened.get(trajectory.trajectory_id)
        others = siblings.get(done.group_id, []) if done is not None else []
        lift = done.success - sum(others) / len(others) if done is not None and others else None
        settled.append(Settled(ids, done.success if done is not None else None, lift))
    return settled
