"""Step labels: a judge labels each step of a finished trajectory while other rollouts still run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from weakref import WeakValueDictionary

from advantage_processor.cache import ExchangeLog, LabelCache, trajectory_hash
from advantage_processor.groups import Group, GroupOutcomes
from advantage_processor.labels import (
    GLIMPSE_CHARS,
    VERSION,
    LabelError,
    LabelReply,
    ParsedLabels,
    StepLabel,
    label_messages,
    opening_and_task,
    read_some,
    repair_messages,
    windows,
)
from advantage_processor.settings import AttributionSettings
from agentevolver.llm import (
    BudgetExceeded,
    EndpointSettings,
    LLMContextOverflow,
    LLMError,
    LLMFiltered,
    LLMRefused,
    LLMReply,
    LLMReplyError,
    LLMSettings,
    LLMTimeout,
    LLMUnavailable,
    Role,
)
from agentevolver.types import Attribution, LabelStatus, Trajectory
from agentevolver.utils import seeds

logger = logging.getLogger(__name__)

# Circuit breaker: after this many failed trajectories in a row, the judge is not asked for `PAUSE_S`.
FAILURES_IN_A_ROW = 3
PAUSE_S = 30.0
# Seconds between two log messages of one kind: a judge that is down fails hundreds of trajectories at once.
SILENCE_S = 30.0
# An advantage below this counts as 0.
SMALL = 1e-8


_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (LabelError, "reply"),
    (TimeoutError, "timeout"),
    (LLMTimeout, "timeout"),
    (LLMUnavailable, "unavailable"),
    (LLMRefused, "refused"),
    (BudgetExceeded, "budget"),
    (LLMError, "llm"),
)


class LabelJudge(Protocol):
    async def chat(self, role: Role, messages: list[dict[str, Any]], **sampling: Any) -> LLMReply: ...


def judge_settings(llm: LLMSettings, settings: AttributionSettings) -> LLMSettings:
    """Return the section `llm` with the judge's settings merged into the role attributor.

    `model`, `concurrent` and `api_max_retries` override the role's; temperature 0 and the reply format are defaults.
    """
    own = dict(llm.roles.get(Role.ATTRIBUTOR, {}))
    form = llm.endpoint(Role.ATTRIBUTOR).response_format(LabelReply)
    sampling = {"temperature": 0.0, **form, **dict(own.get("sampling") or {})}
    given = {"model": settings.model, "concurrency": settings.concurrent}
    given["tries"] = None if settings.api_max_retries is None else settings.api_max_retries + 1
    own |= {name: value for name, value in given.items() if value is not None} | {"sampling": sampling}
    return llm.model_copy(update={"roles": {**llm.roles, Role.ATTRIBUTOR: own}})


@dataclass(slots=True)
class _Work:
    calls: int = 0
    repairs: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    cached: bool = False
    exchanges: list[dict[str, Any]] = field(default_factory=list)


class _Paused(Exception):
    """The circuit breaker is open."""


class Attributor:
    """Labels the steps of trajectories; one per process, safe for concurrent use on one event loop.

    `judge` uses `judge_settings`; `steps_kept` is the number of training steps in which a group may be rolled out.
    """

    def __init__(
        self,
        settings: AttributionSettings,
        judge: LabelJudge,
        *,
        group_size: int,
        steps_kept: int = 1,
        endpoint: EndpointSettings | None = None,
    ) -> None:
        self._settings = settings
        self._judge = judge
        self._groups = GroupOutcomes(group_size, steps_kept)
        self._cache = LabelCache()
        self._log = ExchangeLog(settings.llm_evaluation_log_dir)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pause = _Pause()
        self._told: dict[str, tuple[float, int]] = {}
        self._prices = (endpoint.price_in, endpoint.price_out) if endpoint else (0.0, 0.0)
        answerer = endpoint.model_dump(include={"base_url", "model", "sampling"}) if endpoint else {}
        self._answerer = repr(sorted(answerer.items()))
        self._form: dict[str, Any] = (endpoint.sampling.get("response_format") or {}) if endpoint else {}

    async def label_steps(self, trajectory: Trajectory, *, step: int) -> Attribution:
        """Return a label for each step, or the reason why there is none. Raises nothing but cancellation.

        Call it for every rollout of a training step (counted from 1), failed ones included, and outside any limit on
        concurrent episodes: with `skip_small_adv` it waits for the outcomes of the whole group.
        """
        began = time.perf_counter()
        if not self._settings.labels_wanted(step):
            return Attribution.off(f"no attribution in training step {step}")
        group = self._report(trajectory, step)
        if trajectory.outcome is None or not trajectory.steps:
            return Attribution.off("the rollout failed, there is nothing to attribute")
        reason = await self._skip_reason(trajectory, group)
        work = _Work()
        attribution = (
            Attribution(LabelStatus.SKIPPED, reason=reason)
            if reason
            else await self._labels_or_failure(trajectory, work)
        )
        attribution = replace(
            attribution,
            cached=work.cached,
            calls=work.calls,
            repairs=work.repairs,
            prompt_tokens=work.prompt_tokens,
            completion_tokens=work.completion_tokens,
            cost=work.cost,
            seconds=round(time.perf_counter() - began, 4),
        )
        self._log.write(step, trajectory, attribution, work.exchanges)
        return attribution

    def _report(self, trajectory: Trajectory, step: int) -> Group | None:
        # Only this rule needs the whole group's outcomes.
        if self._settings.adca_grpo.skip_type != "skip_small_adv":
            return None
        outcome = trajectory.outcome
        score = float(outcome.score) if outcome is not None and trajectory.steps else None
        return self._groups.report(trajectory.group_id, trajectory.rollout_id, score, step=step)

    async def _skip_reason(self, trajectory: Trajectory, group: Group | None) -> str:
        if group is not None:
            value = await self._groups.advantage(group, trajectory.rollout_id, self._settings.group_wait_s)
            if value is None:
                logger.warning("group %s: an outcome is late, the rollout is labelled anyway", trajectory.group_id)
            elif abs(value) < SMALL:
                return "skip_small_adv: its group advantage is 0"
        if self._settings.adca_grpo.skip_type == "skip_all_neg" and not self._success(trajectory):
            return "skip_all_neg: it failed its task"
        return ""

    def _success(self, trajectory: Trajectory) -> bool:
        return _score(trajectory) > self._settings.success_threshold

    async def _labels_or_failure(self, trajectory: Trajectory, work: _Work) -> Attribution:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                labels = await self._labels(trajectory, work)
        except _Paused as paused:
            return Attribution(LabelStatus.FAILED, kind="paused", reason=str(paused))
        except Exception as error:  # no error of a judge or its client may cost a finished episode
            return self._failure(trajectory, error)
        return Attribution(
            LabelStatus.LABELLED,
            good=tuple(label.good for label in labels),
            analyses=tuple(label.analysis for label in labels),
        )

    def _failure(self, trajectory: Trajectory, error: Exception) -> Attribution:
        kind = next((kind for known, kind in _KINDS if isinstance(error, known)), "error")
        if kind == "timeout" and not str(error):
            error = TimeoutError(f"no labels within {self._settings.timeout_s:g} s (timeout_s)")
        self._pause.failed(kind)
        self._warn_once(kind, trajectory.trajectory_id, error)
        return Attribution(LabelStatus.FAILED, kind=kind, reason=f"{type(error).__name__}: {error}")

    def _warn_once(self, kind: str, name: str, error: Exception) -> None:
        last, untold = self._told.get(kind, (float("-inf"), 0))
        now = time.monotonic()
        if now - last < SILENCE_S:
            self._told[kind] = (last, untold + 1)
            return
        self._told[kind] = (now, 0)
        more = f" ({untold} more since the last message)" if untold else ""
        unexpected = error if kind == "error" else None
        logger.warning("trajectory %s is not labelled (%s)%s: %s", name, kind, more, error, exc_info=unexpected)

    async def _labels(self, trajectory: Trajectory, work: _Work) -> Sequence[StepLabel]:
        key = self._key(trajectory)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            known = self._cache.get(key)
            if known is not None:
                work.cached = True
                return known
            self._pause.check()
            # Equal rollouts share the lock and the seed, so the labels do not depend on which one comes first.
            with seeds.drawing_for("labels", key):
                labels = await self._label_windows(trajectory, work)
            self._pause.answered()
            self._cache.put(key, labels)
            return labels

    async def _label_windows(self, trajectory: Trajectory, work: _Work) -> list[StepLabel]:
        spans = list(windows(len(trajectory.steps), self._settings.window_steps))
        parts = await _all_or_none([self._label_window(trajectory, window, work) for window in spans])
        return [label for part in parts for label in part]

    def _key(self, trajectory: Trajectory) -> str:
        steps = [(step.action, step.observation) for step in trajectory.steps]
        # Everything that the labels depend on.
        asked = (VERSION, self._settings.model, self._settings.window_steps, self._settings.max_chars, self._answerer)
        return trajectory_hash(
            asked, opening_and_task(trajectory), steps, _score(trajectory), self._success(trajectory)
        )

    async def _label_window(self, trajectory: Trajectory, window: range, work: _Work) -> list[StepLabel]:
        """Label a window of steps; raises LabelError if labels are still missing after one repair."""
        chars, drawn = self._settings.max_chars, dict[str, Any]()
        while True:
            messages = label_messages(trajectory, window, success=self._success(trajectory), max_chars=chars)
            try:
                return await self._answered(messages, window, work, drawn)
            except LLMFiltered:
                # The filter mostly reacts to what the judge wrote, so one other draw is worth a try.
                if drawn:
                    raise
                drawn = {"seed": 1}
            except LLMContextOverflow:
                # Too long for the judge's context: show less of each action and observation.
                if chars <= GLIMPSE_CHARS:
                    raise
                chars = max(GLIMPSE_CHARS, chars // 2)

    async def _answered(
        self, messages: list[dict[str, Any]], window: range, work: _Work, sampling: Mapping[str, Any]
    ) -> list[StepLabel]:
        said, first = await self._some(messages, window, work, {**self._entries(len(window)), **sampling})
        if not first.problem:
            return [first.labels[index] for index in window]
        work.repairs += 1
        missing = [index for index in window if index not in first.labels]
        again = repair_messages(messages, said, first.problem, missing)
        _, second = await self._some(again, window, work, {**self._entries(len(missing)), **sampling})
        labels = {**first.labels, **second.labels}
        if len(labels) < len(window):
            raise LabelError(f"{second.problem} (asked again after: {first.problem})")
        return [labels[index] for index in window]

    def _entries(self, count: int) -> dict[str, Any]:
        """Return a reply format of exactly `count` entries, so that a small model stops; {} without a schema."""
        if self._form.get("type") != "json_schema":
            return {}
        form = deepcopy(self._form)
        form["json_schema"]["schema"]["properties"]["steps"] |= {"minItems": count, "maxItems": count}
        return {"response_format": form}

    async def _some(
        self, messages: list[dict[str, Any]], window: range, work: _Work, sampling: Mapping[str, Any]
    ) -> tuple[str, ParsedLabels]:
        try:
            reply = await self._chat(messages, work, sampling)
        except LLMReplyError as error:  # the judge spent all its tokens on thinking
            return error.text, ParsedLabels({}, str(error))
        try:
            return reply.answer, read_some(reply.answer, window)
        except LabelError as error:
            cut = "; the reply was cut at max_tokens" if reply.finish_reason == "length" else ""
            return reply.answer, ParsedLabels({}, f"{error}{cut}")

    async def _chat(self, messages: list[dict[str, Any]], work: _Work, sampling: Mapping[str, Any]) -> LLMReply:
        work.calls += 1
        reply = await self._judge.chat(Role.ATTRIBUTOR, messages, **sampling)
        if not reply.cached:
            work.prompt_tokens += reply.prompt_tokens
            work.completion_tokens += reply.completion_tokens
            work.cost += (reply.prompt_tokens * self._prices[0] + reply.completion_tokens * self._prices[1]) / 1e6
        work.exchanges.append({"messages": messages, "reply": reply.answer})
        return reply


def _score(trajectory: Trajectory) -> float:
    return trajectory.outcome.score if trajectory.outcome is not None else 0.0


class _Pause:
    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def check(self) -> None:
        """Raise _Paused during the pause. After it, one trajectory tests the judge; the others stay paused until it
        answers.
        """
        if self._failures < FAILURES_IN_A_ROW:
            return
        now = time.monotonic()
        if now < self._until:
            raise _Paused(
                f"the judge failed {self._failures} times in a row; the next call is in {self._until - now:.0f} s"
            )
        self._until = now + PAUSE_S

    def answered(self) -> None:
        self._failures = 0

    def failed(self, kind: str) -> None:
        # An unusable reply still shows that the judge answers.
        if kind == "reply":
            self.answered()
            return
        self._failures = max(self._failures + 1, FAILURES_IN_A_ROW if kind == "budget" else 0)
        self._until = time.monotonic() + (float("inf") if kind == "budget" else PAUSE_S)


async def _all_or_none(questions: Sequence[Coroutine[Any, Any, list[StepLabel]]]) -> list[list[StepLabel]]:
    """Return all results; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(question) for question in questions]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
