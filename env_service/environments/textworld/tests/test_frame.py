"""The frame of text worlds, without any package: a corridor whose end is the goal."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from calling import answers, calling
from environment_checks import UNSURE, said, shows_a_right_call

from env_service.checker import LocalProbe, run_checks
from env_service.contract import checked_init_state, checked_step
from env_service.environments.textworld.frame import ACT, DONE, MOST_CALLS, TextWorldEnv, TextWorldParams, text_tool
from env_service.parameters import laid_over


class CorridorEnv(TextWorldEnv):
    """Three steps north win."""

    isolation = "shared"
    world: ClassVar[str] = "corridor"
    rules: ClassVar[str] = "Walk."
    example: ClassVar[str] = "north"
    longest_command: ClassVar[int] = 20
    act_tool: ClassVar[dict[str, Any]] = text_tool(ACT, "Walk.", "command", "north", required=True)
    done_tool: ClassVar[dict[str, Any]] = text_tool(DONE, "End.", "answer", "found", required=False)
    exact: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        settings = laid_over(TextWorldParams(), params)
        if task_id != "corridor":
            raise ValueError(f"no task {task_id!r}")
        super().__init__(task_id, instance_id, params, settings, settings.max_steps or 5)
        self._at = 0

    def _goal(self) -> str:
        return "Reach the end."

    def _first_sight(self) -> str:
        return "A corridor."

    def _forbidden(self, words: str) -> str | None:
        return "No." if words == "restart" else None

    def _play(self, words: str) -> tuple[str, bool]:
        self._at += words == "north"
        if self._at == 3:
            self._stop = "finished"
        return f"{self._at} of 3.", words != "north"

    def _commands(self) -> list[str]:
        return ["north"]

    def _grade(self, *, sparse: bool) -> float:
        return float(self._at == 3) if sparse else self._at / 3

    def _facts(self) -> dict[str, Any]:
        return {"max_steps": self._max_steps}

    def _state_facts(self) -> dict[str, Any]:
        return {"at": self._at}

    def _secret(self, what: str) -> Any:
        return ["north"] * 3

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        if split not in ("train", "dev"):
            raise ValueError(f"unknown split {split!r}")
        return ["corridor"]


def begun(**params: Any) -> CorridorEnv:
    env = CorridorEnv("corridor", "one", params)
    checked_init_state(env.get_init_state())
    return env


def says(env: CorridorEnv, text: str) -> Any:
    return checked_step(env.step({"role": "assistant", "content": text}))


def test_a_world_in_the_frame_keeps_the_contract() -> None:
    assert not [found for found in run_checks(LocalProbe(CorridorEnv), action="action: north") if found.problem]


@pytest.mark.parametrize("native", [False, True])
def test_a_language_model_is_shown_a_right_call(native: bool) -> None:
    wrong = [UNSURE, calling((ACT, "{}")) if native else said("action: ä")]
    shows_a_right_call(CorridorEnv, {"native_tools": native}, wrong=wrong)


def test_the_last_line_behind_the_thought_is_the_command() -> None:
    env = begun(admissible=True)
    result = says(env, "<think>\naction: restart\n</think>\naction: south\nAction:  north ")
    assert (result["state"][0]["content"], result["info"]["refused"]) == ("1 of 3.\n\nYou can: north.", False)
    assert env.evaluate(params={"sparse": False}) == pytest.approx(1 / 3) and env.evaluate() == 0.0
    says(env, "action: north")
    result = says(env, "action: north")
    assert result["state"][0]["content"] == "3 of 3.\nThe episode is over."
    assert (result["reward"], result["info"]["finished"], result["info"]["steps"]) == (1.0, True, 3)
    with pytest.raises(ValueError, match=r"over \(finished\)"):
        says(env, "action: north")


@pytest.mark.parametrize("text", ["", "north", "action: restart", "action: ä", f"action: {'x' * 21}", "action:"])
def test_what_is_no_command_costs_a_step_and_changes_nothing(text: str) -> None:
    env = begun(max_steps=1)
    before = env.get_info(params={"what": "state"})
    result = says(env, text)
    assert result["info"]["refused"] and result["info"]["stop_reason"] == "max_steps"
    assert env.get_info(params={"what": "state"}) == before


def test_calls_are_answered_each_and_at_most_so_many_are_carried_out() -> None:
    env = begun(native_tools=True, is_open_query=True, max_steps=1000)
    assert [tool["function"]["name"] for tool in env.tools()] == [ACT, DONE]
    env.tools()[0]["function"]["name"] = "changed"
    assert env.tools()[0]["function"]["name"] == ACT
    wrong = [("act", {"command": 1}), ("act", {"command": "x", "y": 1}), ("walk", {}), ("act", "{")]
    told = answers(env.step(calling(*wrong)))  # type: ignore[arg-type]
    assert all(text.startswith("There is the tool `act` with one text") for text in told[:3])
    assert "JSON" in told[3]
    many = env.step(calling(*[("act", {"command": "wait"})] * (MOST_CALLS + 1)))  # type: ignore[arg-type]
    assert answers(many)[-1] == "Not carried out: a message may hold 64 calls."
    assert many["info"]["steps"] == len(wrong) + MOST_CALLS
    ended = env.step(calling(("done", {"answer": "an end"}), ("act", {"command": "north"})))  # type: ignore[arg-type]
    assert answers(ended)[1] == "Not carried out: the episode is over."
    assert (ended["info"]["answer"], ended["reward"]) == ("an end", 0.0)


def test_what_cannot_be_asked_is_refused() -> None:
    env = begun()
    with pytest.raises(ValueError, match=r"what=task\|tools\|state\|walkthrough"):
        env.get_info(params={"what": "progress"})
    with pytest.raises(ValueError, match="when the instance is created"):
        env.get_init_state({"max_steps": 2})
    assert env.get_info(params={"what": "walkthrough"}) == ["north"] * 3
