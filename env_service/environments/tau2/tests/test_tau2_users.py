"""The customers of tau2: scripted, and played by a language model at an address of the service's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from calling import calling
from chat_model import Model, served

from env_service.environments.tau2.env import Tau2Env
from env_service.environments.tau2.users import UserEndpoint, UserFailed

TELECOM = "telecom.[mobile_data_issue]airplane_mode_on|data_mode_off[PERSONA:None]"


def begun(task_id: str, **params: Any) -> tuple[Tau2Env, dict[str, Any]]:
    env = Tau2Env(task_id, "one", {"native_tools": True, **params})
    return env, dict(env.get_init_state())


def heard(env: Tau2Env, text: str) -> Any:
    return env.step({"role": "assistant", "content": text})


def test_a_scripted_customer_tells_all_it_knows_agrees_once_and_stops() -> None:
    env, opening = begun("retail.1")
    assert opening["state"][-1]["content"].startswith("You received your order #W2378156")
    texts = []
    while not (result := heard(env, "Please go on."))["is_terminated"]:
        texts.append(result["state"][0]["content"])
    assert "You are Yusuf Rossi in zip code 19122." in texts and texts[-1] == "Yes, please go ahead."
    assert result["state"][0]["content"] == "###STOP###" and result["info"]["finished"]


def test_a_scripted_customer_says_that_its_numbers_are_none_of_the_benchmark() -> None:
    env, opening = begun("airline.0")
    state = env.get_info(params={"what": "state"})
    assert opening["info"]["user"] == state["user"] == "scripted"
    assert opening["info"]["publishable"] is state["publishable"] is False
    env, opening = begun(TELECOM, user="solo")
    assert opening["info"]["publishable"] is env.get_info(params={"what": "state"})["publishable"] is True


def test_a_scripted_customer_does_what_a_message_names_of_its_tools() -> None:
    env, _ = begun(TELECOM)
    told = heard(env, 'Do toggle_airplane_mode, then check_app_status({"app_name": "messaging"}), then rm_rf().')
    lines = told["state"][0]["content"]
    assert (
        lines.startswith("toggle_airplane_mode: Airplane Mode is now OFF")
        and "check_app_status: Status for App: messaging" in lines
    )
    assert "rm_rf" not in lines and told["info"]["errors"] == 0
    assert heard(env, "You are being transferred to a human agent now.")["state"][0]["content"] == "###TRANSFER###"


def test_the_customers_phone_is_not_the_agents() -> None:
    call: Any = calling(("toggle_airplane_mode", {}))
    refused = begun(TELECOM)[0].step(call)
    assert "not found" in refused["info"]["refused"]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    with served() as made:
        monkeypatch.setenv("ENV_TAU2_USER_URL", f"{made.url}/v1")
        monkeypatch.setenv("ENV_TAU2_USER_MODEL", "player")
        monkeypatch.setenv("ENV_TAU2_USER_KEY", "sk-secret")
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        yield made


@pytest.mark.service
def test_a_language_model_plays_the_customer_and_uses_its_phone(model: Model) -> None:
    call = {"id": "u1", "type": "function", "function": {"name": "toggle_airplane_mode", "arguments": "{}"}}
    model.replies = [
        {"role": "assistant", "content": "<think>hm</think>My data is gone."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": "It is off now."},
        503,
        {"role": "assistant", "content": "Thanks ###STOP###"},
    ]
    env, opening = begun(TELECOM, user="llm")
    assert opening["state"][-1]["content"] == "My data is gone." and opening["info"]["publishable"] is True
    assert heard(env, "Turn airplane mode off.")["state"] == [{"role": "user", "content": "It is off now."}]
    result = heard(env, "Goodbye.")
    assert result["is_terminated"] and result["info"]["finished"]
    first, told = model.asked[0], model.asked[2]["messages"]
    assert (
        "User Simulation Guidelines" in first["messages"][0]["content"]
        and "John Smith" in first["messages"][0]["content"]
    )
    assert "toggle_airplane_mode" in {tool["function"]["name"] for tool in first["tools"]}
    assert [message["role"] for message in told[1:]] == ["user", "assistant", "user", "assistant", "tool"]
    assert told[-1]["tool_call_id"] == "u1" and "now OFF" in told[-1]["content"]
    assert set(model.keys) == {"Bearer sk-secret"}


@pytest.mark.service
@pytest.mark.parametrize(
    ("replies", "match"),
    [([500, 500, 500], "HTTP 500"), ([401], "HTTP 401"), ([{"role": "assistant", "content": ""}], "said nothing")],
)
def test_a_customer_that_fails_is_an_error_and_never_a_grade(model: Model, replies: list[Any], match: str) -> None:
    model.replies = replies
    with pytest.raises(UserFailed, match=match) as failed:
        begun("airline.0", user="llm")
    assert "sk-secret" not in str(failed.value) and model.replies == []


def test_a_language_model_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "MODEL", "KEY"):
        monkeypatch.delenv(f"ENV_TAU2_USER_{name}", raising=False)
    with pytest.raises(ValueError, match="ENV_TAU2_USER_URL"):
        Tau2Env("airline.0", "one", {"user": "llm"})
    assert "sk-" not in repr(UserEndpoint("http://x/v1", "m", "sk-secret"))
