"""docs/train_your_agent.md: the agent of thirty lines is played as it is printed, and its experiment is understood."""

import re
from pathlib import Path

import pytest

from agentevolver.config.checks import load
from agentevolver.types import StopReason
from tests.agentevolver.rollout.agents import EchoEnv, roll
from tests.chat_tokenizers import CHATML, build_tokenizer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "train_your_agent.md").read_text(encoding="utf-8")


def first(language: str, after: str) -> str:
    """The first block of a language behind a line."""
    return re.search(rf"```{language}\n(.*?)```", PAGE.partition(after)[2], re.DOTALL)[1]


@pytest.mark.service
def test_the_agent_of_the_page_plays_an_episode():
    module: dict[str, object] = {}
    exec(compile(first("python", "`my_agent.py`"), "my_agent.py", "exec"), module)
    rollout = roll(build_tokenizer(CHATML, "<|im_end|>"), module["play"], EchoEnv(4))
    assert rollout.trajectory.stop_reason is StopReason.FINISHED and len(rollout.trajectory.steps) == 4
    assert len(rollout.samples) == 1 and sum(rollout.samples[0].response_mask) > 10


def test_its_experiment_is_understood(tmp_path):
    conf = tmp_path / "my_agent.yaml"
    conf.write_text(first("yaml", "`my_agent.yaml`"))
    settings = load(conf, ["device=cpu"]).settings
    assert settings.rollout.agent_function == "my_agent:play" and settings.experiment_dir == Path(
        "experiments/mine/my_agent"
    )
