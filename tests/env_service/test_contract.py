"""The contract's checks accept what the contract allows and name what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from counter_envs import Counter

from env_service.contract import (
    ContractError,
    checked_class,
    checked_init_state,
    checked_score,
    checked_step,
    created_with,
)

USER = {"role": "user", "content": "go"}
STEP = {"state": [USER], "reward": 1, "is_terminated": False, "info": {}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "a dict with `state`"),
        ({"state": [USER, {"role": "assistant", "content": "x"}], "info": {}}, "the last one is from the user"),
        ({"state": [{"role": "robot", "content": ""}], "info": {}}, "a role of"),
        ({"state": [USER]}, "as `info`"),
    ],
)
def test_a_wrong_init_state_is_named(value: Any, message: str) -> None:
    right = {"state": [{"role": "system", "content": "s"}, USER], "info": {"a": 1}}
    assert checked_init_state(right) == right
    with pytest.raises(ContractError, match=message):
        checked_init_state(value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": float("nan")}, "finite"),
        ({"reward": True}, "a finite number"),
        ({"state": "text"}, "a list of messages"),
        ({"info": {"refused": 1}}, "`info.refused`"),
        ({"info": {"finished": True}, "is_terminated": False}, "together with `is_terminated`"),
    ],
)
def test_a_wrong_step_is_named(change: dict[str, Any], message: str) -> None:
    told = {"refused": False, "finished": True, "answer": None}
    right = checked_step({**STEP, "is_terminated": True, "info": told})
    assert right["info"] == told and isinstance(right["reward"], float)
    with pytest.raises(ContractError, match=message):
        checked_step({**STEP, **change})


def test_the_number_of_steps_comes_under_the_name_that_the_class_gives_it() -> None:
    named = type("Named", (Counter,), {"explore_steps": "max_steps"})
    assert created_with(named, {"explore_steps": 7, "max_steps": 3, "x": 1}) == {"max_steps": 7, "x": 1}
    assert created_with(named, {"max_steps": 3}) == {"max_steps": 3}
    assert created_with(Counter, {"explore_steps": 7}) == {} and created_with(Counter, None) == {}


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan"), None, True])
def test_a_score_outside_0_to_1_is_refused(score: Any) -> None:
    assert (checked_score(0), checked_score(1)) == (0.0, 1.0)
    with pytest.raises(ContractError, match="`evaluate`"):
        checked_score(score)


def test_a_class_must_be_complete_and_declare_its_hosting() -> None:
    assert checked_class(Counter, "x:Counter") is Counter
    incomplete = type("Incomplete", (Counter.__bases__[0],), {})
    for value, message in [
        (dict, "must be a subclass"),
        (incomplete, "does not implement evaluate, get_init_state, get_query_list, step"),
    ]:
        with pytest.raises(ContractError, match=message):
            checked_class(value, "x:Y")
    wrong = {"isolation": "none", "call_timeout_s": 0, "memory_mb": -1, "explore_steps": 20, "native_tools": "yes"}
    for name, declared in wrong.items():
        with pytest.raises(ContractError, match=f"{name}={declared!r}"):
            checked_class(type("Wrong", (Counter,), {name: declared}), "x:Y")
