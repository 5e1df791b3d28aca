"""`check` finds what is wrong with an environment, in process and over HTTP."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from counter_envs import Counter
from local_hosts import serving

from env_service.base import InitState, Message, StepResult
from env_service.checker import HttpProbe, LocalProbe, run_checks


class Sound(Counter):
    """A counter that any text may be said to."""

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        number = action["content"].strip()
        return super().step({"role": "assistant", "content": number if number.isdigit() else "0"}, params)

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        dense = min(self.total, 10) / 10
        return dense if (params or {}).get("sparse") is False else float(dense == 1.0)


class AnySplit(Sound):
    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        return ["t0"]


class Shuffled(Sound):
    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        Sound.get_query_list(split)
        return [f"t{number}" for number in random.sample(range(1000), 50)]


class AnyTask(Sound):
    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__("t0", instance_id, params)


class Moody(Sound):
    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        return {"state": [{"role": "user", "content": f"{random.random()}"}], "info": {}}


class Shared(Sound):
    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        Shared.sum = getattr(Shared, "sum", 0) + 1
        return super().step(action, params)

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        return min(1.0, getattr(Shared, "sum", 0) / 1000) if (params or {}).get("sparse") is False else 0.0


class Won(Sound):
    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        return 1.0


class FussyClose(Sound):
    def close(self) -> None:
        if not self.calls:
            raise RuntimeError("nothing happened yet")


class Telling(Sound):
    """Says what its actions do, and what its state is."""

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        if set(params or {}) - {"is_open_query"}:
            raise ValueError(f"unknown parameters {params}")
        opening = super().get_init_state(params)
        return {**opening, "info": {"query": opening["state"][-1]["content"]}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        is_number = action["content"].strip().isdigit()
        result = super().step(action, params)
        result["info"] |= {"refused": not is_number, "finished": result["is_terminated"]}
        return result

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        return {"facts": {"total": self.total}, "answer": None, "finished": self.total >= 10, "exact": True}


class LostQuery(Telling):
    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        return {**super().get_init_state(params), "info": {"query": "Reach twelve."}}


class NoSuchParameter(Telling):
    explore_steps = "max_steps"


class TellsAtTimes(Telling):
    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        result = super().step(action, params)
        if not result["info"]["refused"]:
            del result["info"]["refused"]
        return result


class PrivateState(Telling):
    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        return {
            **super().get_info(messages, params),
            "facts": {"total": self.total, "id": self.instance_id if self.calls else ""},
        }


BROKEN = [
    (Counter, "Whatever an agent writes"),
    (AnySplit, "ValueError for a split"),
    (Shuffled, "in the same order"),
    (AnyTask, "a task that does not exist"),
    (Moody, "start alike"),
    (Shared, "changes nothing in another"),
    (Won, "not solved before"),
    (FussyClose, "closes without an exception"),
    (LostQuery, "info.query"),
    (NoSuchParameter, "explore_steps"),
    (TellsAtTimes, "If info reports"),
    (PrivateState, "what=state"),
]


@pytest.mark.parametrize("env_class", [Sound, Telling])
def test_a_sound_environment_has_no_findings(env_class: type[Counter]) -> None:
    findings = list(run_checks(LocalProbe(env_class), action="1"))
    assert len(findings) >= 17 and not [finding for finding in findings if finding.problem]


@pytest.mark.parametrize(("env_class", "promise"), BROKEN)
def test_each_kind_of_defect_is_found(env_class: type[Counter], promise: str) -> None:
    broken = [finding for finding in run_checks(LocalProbe(env_class), action="1") if finding.problem]
    assert any(promise in finding.promise for finding in broken), broken


@pytest.mark.service
async def test_the_same_checks_run_over_http() -> None:
    async with serving({"sound": "test_tool_checks:Tools"}) as running:
        findings = await asyncio.to_thread(lambda: list(run_checks(HttpProbe(running.url, "sound"), action="1")))
        assert findings and not [finding for finding in findings if finding.problem]
        assert not running.service.instances
