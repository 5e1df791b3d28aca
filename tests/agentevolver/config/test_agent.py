"""The user's agent in the configuration: both spellings of its key, and what is refused before anything is started."""

import sys

import pytest

from agentevolver.config.agent import agent_function, check_command
from agentevolver.config.checks import for_verl, load
from agentevolver.config.schema import of_verl
from agentevolver.utils.errors import ConfigError

ROLLOUT = "actor_rollout_ref.rollout"
BASE = ["device=cpu", "actor_rollout_ref.model.path=somewhere"]


def rollout(*overrides):
    return load(None, [*BASE, *(f"{ROLLOUT}.{item}" for item in overrides)]).settings.rollout


@pytest.mark.parametrize("key", ["agent", "agent_function"])
def test_a_text_at_verls_section_is_our_key(key):
    resolved = load(None, [*BASE, f"{ROLLOUT}.{key}=mine.agent:play"])
    assert resolved.settings.rollout.agent_function == "mine.agent:play" and resolved.settings.rollout.is_served
    assert resolved.config.actor_rollout_ref.rollout.agent.num_workers > 0


def test_verls_section_stays_verls(tmp_path):
    conf = tmp_path / "mine.yaml"
    conf.write_text("actor_rollout_ref: {rollout: {agent: 'mine.agent:play'}}\n")
    resolved = load(conf, [*BASE, f"{ROLLOUT}.agent.num_workers=3"])
    assert resolved.settings.rollout.agent_function == "mine.agent:play"
    assert resolved.config.actor_rollout_ref.rollout.agent.num_workers == 3


def test_verl_is_given_its_own_section_alone():
    copy = for_verl(load(None, [*BASE, f"{ROLLOUT}.agent=mine.agent:play"]).config)
    assert (
        "agent_function" not in copy.actor_rollout_ref.rollout and "num_workers" in copy.actor_rollout_ref.rollout.agent
    )
    assert of_verl(copy).rollout.agent_function == "mine.agent:play"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agent=play"], r"agent_function: write package\.module:function, found 'play'"),
        (["agent_function=a:b", "agent_command=[c]"], "both set: remove one"),
        (["agent_command=[run,'{url}']"], r"\{url\} is not known; known are \{query\}, \{base_url\}"),
        (["agent_command=[run,'--key={api_key}']"], "can read a command line, so the key is in OPENAI_API_KEY"),
        (["agent=a:b", "context_template=reasoning"], "context_template = reasoning has no effect with"),
        (["agent=a:b", "agent_container=auto"], "agent_container = auto: .*set .*agent_command, and .*agent_world"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        rollout(*overrides)


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "some_agent.py").write_text("async def play(task, endpoint, world): ...\ndef narrow(task): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("some_agent", None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("some_agent:plya", "cannot be imported: AttributeError.*plya"),
        ("no_such_agent:play", "cannot be imported: ModuleNotFoundError.*PYTHONPATH"),
        ("some_agent:narrow", r"must take three arguments, \(task, endpoint, world\).*it takes \(task\)"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(module, spec, message):
    with pytest.raises(ConfigError, match=message):
        agent_function(spec)


def test_a_program_that_is_not_there_is_refused():
    check_command(rollout("agent_command=[sh,-c,'exit 0']"))
    with pytest.raises(ConfigError, match="no program 'no-such-program' in PATH"):
        check_command(rollout("agent_command=[no-such-program]"))
