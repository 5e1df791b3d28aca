"""Feedback levels: what a refusal says beyond the environment's word, and that validation never hears it."""

import pytest

from agentevolver.config.checks import load
from agentevolver.config.parts import from_settings
from agentevolver.errors import ConfigError
from env_service.environments.bfcl.env import BfclEnv
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.quirks import quirks_of
from env_service.environments.pocket.tasks import task_ids
from env_service.feedback import HINT
from tests.agentevolver.trainer.test_tasks import BASIC

TASK = next(t for t in task_ids("train", 400) if quirks_of(int(t.split(".")[1][1:])).guard == "doc")


def said(env, text):
    return env.step({"role": "assistant", "content": text})["state"][0]["content"]


def pocket(level):
    return PocketEnv(TASK, "x", {"slack": 5, **({"feedback": level} if level else {})})


def test_pocket_says_more_at_each_level_and_nothing_more_of_what_worked():
    plain = said(pocket(None), "note.del n3")
    assert plain == said(pocket("plain"), "note.del n3") == "err read doc note.del first"
    schema, recovery = said(pocket("schema"), "note.del n3"), said(pocket("recovery"), "note.del n3")
    assert schema == f"{plain}{HINT}use note.del ID"
    assert recovery == f"{schema} , call doc note.del first"
    assert said(pocket("recovery"), "doc") == said(pocket("plain"), "doc")
    assert said(pocket("recovery"), "").endswith("call doc to see the apps and their tools")


def test_levels_that_are_none_are_refused():
    with pytest.raises(ValueError, match="feedback='loud'"):
        pocket("loud")


@pytest.mark.thorough
def test_bfcl_says_more_at_each_level():
    pytest.importorskip("bfcl_eval")
    call = '<tool_call>{"name": "cd", "arguments": {}}</tool_call>'
    heard = {
        level: said(BfclEnv("multi_turn_base_0", "x", {"feedback": level} if level else None), call)
        for level in (None, "plain", "schema", "recovery")
    }
    assert heard[None] == heard["plain"] and HINT not in heard["plain"]
    assert '"parameters"' in heard["schema"] and "correct the arguments" not in heard["schema"]
    assert "correct the arguments" in heard["recovery"]
    with pytest.raises(ValueError, match="feedback='loud'"):
        BfclEnv("multi_turn_base_0", "x", {"feedback": "loud"})


def settings(*items):
    return load(BASIC, ["device=cpu", "actor_rollout_ref.model.path=x", *items]).settings


def test_validation_is_always_plain_and_so_is_making_tasks():
    made = settings("env_service.env_params.feedback=recovery")
    environment = made.environments[0]
    assert environment.params(validation=False)["feedback"] == "recovery"
    assert environment.params(validation=True)["feedback"] == "plain"
    assert "feedback" not in from_settings(made).env_service.env_params
    assert "feedback" not in settings().environments[0].params(validation=True)
    with pytest.raises(ConfigError, match="validation is always plain"):
        settings("env_service.val_env_params.feedback=schema")
