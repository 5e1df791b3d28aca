"""AppWorld as an environment: one instance is one episode, in a worker process of its own.

The instance itself runs no agent's code, so one process may hold many. If a worker dies, `workers.WorkerError` is
raised and the episode gets no grade.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.appworld import prompts
from env_service.environments.appworld.actions import code_of, parse
from env_service.environments.appworld.installation import EpisodeFolder, Installation, confinement
from env_service.environments.appworld.settings import AppworldParams, difficulty_of, split_name
from env_service.environments.appworld.workers import AppWorldWorker, WorkerDied, WorkerTimeout, ask_once
from env_service.tool_calls import answer_to, structured_calls

# Code that swallows AppWorld's own time limit is given this much longer; then its process is killed.
KILL_AFTER_S = 5.0


class AppworldEnv(BaseEnv):
    """Everyday apps operated by Python code; see `settings.AppworldParams` for the parameters."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 150.0
    explore_steps: ClassVar[str] = "max_interactions"
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._settings = AppworldParams().updated(params)
        self._installation = Installation.find()
        self._installation.check_task(task_id)
        self._folder: EpisodeFolder | None = None
        self._worker: AppWorldWorker | None = None
        self._grade: dict[str, Any] | None = None
        self._stop_reason: str | None = None
        self._interactions = 0

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        self._settings = settings = self._settings.updated(params)
        self.close()
        self._stop_reason, self._interactions = None, 0
        self._folder = EpisodeFolder()
        self._worker = AppWorldWorker(self._installation)
        facts = self._worker.ask(
            "open",
            task_id=self.task_id,
            directory=str(self._folder.path),
            is_open_query=settings.is_open_query,
            random_seed=settings.random_seed,
            confinement=confinement(),
        )
        state = prompts.opening(
            facts,
            is_simple=settings.simple,
            with_prompt=settings.prompt,
            is_open_query=settings.is_open_query,
            native=settings.native_tools,
        )
        info = {
            "instance_id": self.instance_id,
            "task_id": self.task_id,
            "query": state[-1]["content"],
            "instruction": None if settings.is_open_query else facts["instruction"],
            "supervisor": facts["supervisor"],
            "datetime": facts["datetime"],
            "is_open_query": settings.is_open_query,
            "max_interactions": settings.max_interactions,
        }
        return {"state": state, "info": info}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Execute the code blocks of a message in order until one fails or completes the task. `info`: blocks found and
        executed, whether one failed, `refused`, `finished`, `interactions`, `stop_reason` (finished,
        max_interactions, code_timeout or None)."""
        worker = self._running()
        settings = self._settings.updated(params)
        self._interactions += 1
        self._grade = None
        if settings.native_tools:
            return self._answer_calls(worker, action, settings)
        found = parse(action, is_simple=settings.simple)
        results = self._execute(worker, found.blocks, settings)
        problems = [*found.problems]
        if skipped := len(found.blocks) - len(results):
            problems.append(f"{self._why_not(results)}: {skipped} more block{'s' if skipped > 1 else ''}.")
        problems += self._limit(settings)
        calls = structured_calls(action)
        is_tool_call = bool(calls)
        if found.blocks:
            text = prompts.executed(
                [r["output"] for r in results], len(found.blocks), problems, is_simple=settings.simple
            )
        else:
            text = prompts.nothing_executed(problems, is_simple=settings.simple, is_tool_call=is_tool_call)
        state: list[Message] = [answer_to(calls[0], text)] if calls else [{"role": "user", "content": text}]
        return self._reply(state, len(found.blocks), results, text, params)

    def _answer_calls(self, worker: AppWorldWorker, action: Message, settings: AppworldParams) -> StepResult:
        calls = structured_calls(action)
        read = [code_of(call) for call in calls]
        blocks = [code for code, _ in read if code]
        results = self._execute(worker, blocks, settings)
        left = iter(results)
        texts = []
        for code, problem in read:
            if not code:
                texts.append(prompts.nothing_executed([problem], is_simple=False, is_tool_call=True))
            elif result := next(left, None):
                texts.append(prompts.executed([result["output"]], 1, [], is_simple=True))
            else:
                texts.append(f"{self._why_not(results)}.")
        texts = texts or [prompts.NO_CALL]
        texts[-1] = "\n\n".join([texts[-1], *self._limit(settings)])
        state: list[Message] = [answer_to(call, text) for call, text in zip(calls, texts, strict=False)]
        return self._reply(state or [{"role": "user", "content": texts[0]}], len(blocks), results, texts[0], None)

    def _reply(
        self,
        state: list[Message],
        blocks: int,
        results: list[dict[str, Any]],
        text: str,
        params: dict[str, Any] | None,
    ) -> StepResult:
        failed = next((result["output"] for result in results if result["failed"]), None)
        refusal: bool | str = text if not blocks else failed if failed is not None else False
        info = {
            "blocks": blocks,
            "executed": len(results),
            "failed": any(result["failed"] for result in results),
            "interactions": self._interactions,
            "refused": refusal,
            "finished": self._stop_reason == "finished",
            "stop_reason": self._stop_reason,
        }
        return {
            "state": state,
            "reward": self.evaluate(params=params) if self._stop_reason else 0.0,
            "is_terminated": self._stop_reason is not None,
            "info": info,
        }

    def _running(self) -> AppWorldWorker:
        if self._worker is None:
            raise ValueError(f"the episode of task {self.task_id!r} has not begun; call get_init_state first")
        if self._stop_reason:
            raise ValueError(
                f"the episode of task {self.task_id!r} is over ({self._stop_reason}); create a new instance"
            )
        return self._worker

    def _execute(self, worker: AppWorldWorker, blocks: list[str], settings: AppworldParams) -> list[dict[str, Any]]:
        """Execute the blocks and return their results; only the last one may have failed, timed out or completed the
        task."""
        deadline = time.monotonic() + settings.timeout_s
        max_chars = max(200, settings.max_output_chars // max(1, len(blocks)))
        results: list[dict[str, Any]] = []
        for code in blocks:
            limit = max(1, math.ceil(deadline - time.monotonic()))
            try:
                result = worker.ask("execute", limit + KILL_AFTER_S, code=code, limit_s=limit, max_chars=max_chars)
            except WorkerTimeout:
                self._stop_reason = "code_timeout"
                text = (
                    f"Execution failed. The code did not stop when its {settings.timeout_s:g} seconds were over; "
                    "the session was ended."
                )
                result = {"output": text, "failed": True, "completed": False}
            results.append(result)
            if result["completed"]:
                self._stop_reason = "finished"
            if result["failed"] or self._stop_reason:
                break
        return results

    def _why_not(self, results: list[dict[str, Any]]) -> str:
        reason = "the task is completed" if self._stop_reason == "finished" else f"block {len(results)} failed"
        return f"Not executed, because {reason}"

    def _limit(self, settings: AppworldParams) -> list[str]:
        """End the episode if its interactions are used up; return the message about it."""
        if self._stop_reason is not None or self._interactions < settings.max_interactions:
            return []
        self._stop_reason = "max_interactions"
        return [f"The limit of {settings.max_interactions} interactions is reached; the episode is over."]

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade the saved state: 1 if all checks pass, else 0; 0 without a task. With `sparse` false: (passes -
        baseline) / (checks - baseline), at least 0. The baseline is the number of checks that pass if the agent only
        completes the task."""
        if self._folder is None:
            raise ValueError(f"the episode of task {self.task_id!r} has not begun; call get_init_state first")
        if self._settings.is_open_query:
            return 0.0
        grade = self._graded()
        if self._settings.updated(params).sparse:
            return 1.0 if grade["success"] else 0.0
        passes, total = len(grade["passes"]), grade["num_checks"]
        untouched = baseline(self._installation, self.task_id)
        return max(0.0, (passes - untouched) / (total - untouched)) if total > untouched else float(grade["success"])

    def _graded(self) -> dict[str, Any]:
        if self._worker is not None and not self._worker.is_open and self._stop_reason != "code_timeout":
            raise WorkerDied(f"the episode of task {self.task_id!r} was lost with its worker; it has no grade")
        if self._grade is None and self._folder is not None:
            self._grade = ask_once(self._installation, "grade", task_id=self.task_id, directory=str(self._folder.path))
        return self._grade or {}

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `params["what"]`: "apis" or "tools" (default), "docs" (of `params["app_name"]`), "state"
        (`base.StateInfo`: the tables that changed, not how, with `changed_models`, `completed`, `api_calls`), or
        "checks" (`passes` and `failures`; not for the agent)."""
        wanted = dict(params or {})
        what, app_name = wanted.pop("what", "apis"), wanted.pop("app_name", None)
        if (
            wanted
            or what not in ("apis", "tools", "docs", "state", "checks")
            or (what == "docs") != (app_name is not None)
        ):
            raise ValueError(
                "get_info of appworld understands what=tools|apis|state|checks, or what=docs with app_name; got "
                f"{params!r}"
            )
        if self._worker is None:
            raise ValueError(f"the episode of task {self.task_id!r} has not begun; call get_init_state first")
        if what == "checks":
            return self._graded()
        fields = {"app_name": app_name} if app_name else {}
        result: dict[str, Any] = self._worker.ask("state" if what == "state" else "docs", **fields)
        if what != "state":
            return result
        changed = {model: True for model in result["changed_models"]}
        return {
            "facts": {"changed": changed},
            "answer": None,
            "finished": bool(result["completed"]),
            "exact": False,
            **result,
        }

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        return [prompts.tool_schema()]

    def close(self) -> None:
        worker, folder = self._worker, self._folder
        self._worker = self._folder = self._grade = None
        if worker is not None:
            worker.close()
        if folder is not None:
            folder.delete()

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of train, dev (or val), test_normal (or test), test_challenge; `difficulty` 1, 2 or 3
        narrows the list."""
        name, difficulty = split_name(split), difficulty_of(params)
        return Installation.find().task_ids(name, difficulty)


@lru_cache(maxsize=4096)
def baseline(installation: Installation, task_id: str) -> int:
    folder = EpisodeFolder()
    try:
        grade = ask_once(installation, "baseline", task_id=task_id, directory=str(folder.path))
    finally:
        folder.delete()
    return len(grade["passes"])
