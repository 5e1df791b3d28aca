"""Agent packages as they are, each a process, solve tasks of PocketWorld through the gateway: one chain, one sample."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agents import playing
from tests.agents.playing import CODEX, PYTHON, SCRIPTS, TASKS, Played, hermes, played, run_program, solution

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def installed() -> None:
    playing.need_agents()


def solving(task_id: str) -> list[str]:
    """The replies that solve a task: a word before the first call, then calls alone, then no call."""
    calls = solution(task_id)
    return [hermes(calls[0], "I look first.\n"), *map(hermes, calls[1:]), "That is done."]


async def play(
    script: str, *arguments: str, folder: Path, replies: object = solving, tasks: tuple[str, ...] = TASKS
) -> list[Played]:
    async def run(episodes: list[playing.Episode]) -> None:
        command = [PYTHON, "-W", "ignore", SCRIPTS / f"{script}.py", *arguments]
        await run_program(command, playing.environment(episodes, folder), folder)

    async with played(tasks, run, replies) as episodes:  # type: ignore[arg-type]
        return episodes


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        pytest.param("openai_agents", ("responses",), id="openai-agents, responses"),
        pytest.param("openai_agents", ("chat",), id="openai-agents, chat"),
        pytest.param("pydantic_ai_agent", (), id="pydantic-ai"),
        pytest.param("langchain_agent", (), id="langchain create_agent"),
    ],
)
async def test_an_agent_is_one_chain_and_one_sample(script: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    for episode in await play(script, *arguments, folder=tmp_path):
        episode.check_samples(1)
        episode.check_told()


def finishing(task_id: str) -> list[str]:
    """As `solving`, for an agent that ends with a call of its own."""
    return [*map(hermes, solution(task_id)), hermes(("final_answer", {"answer": "done"}))]


async def test_smolagents_tells_its_calls_anew_and_is_at_most_six_samples(tmp_path: Path) -> None:
    for episode in await play("smolagents_agent", folder=tmp_path, replies=finishing):
        assert len(episode.engine.said) <= 6
        episode.check_samples((1, 6))
        episode.check_told()
        assert episode.rollout.differences  # and the gateway says what was told otherwise


def codex_config(episode: playing.Episode) -> str:
    """The configuration of a codex that asks the gateway alone."""
    return f"""
model = "{episode.model}"
model_provider = "gateway"
web_search = "disabled"
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
goals = false
multi_agent = false
[model_providers.gateway]
name = "gateway"
base_url = "{episode.base_url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
"""


def in_a_shell(task_id: str) -> list[str]:
    """The solution as commands of a shell, each a call of `world.py`."""
    replies = []
    for name, arguments in solution(task_id):
        command = shlex.join([str(PYTHON), str(SCRIPTS / "world.py"), name, playing.json.dumps(arguments)])
        replies.append(hermes(("exec_command", {"cmd": command})))
    return [*replies, "That is done."]


async def run_codex(episode: playing.Episode, home: Path) -> None:
    (home / "work").mkdir(parents=True)
    (home / "config.toml").write_text(codex_config(episode))
    environ = {
        **playing.environment([replace(episode, tools=[])], home),
        "CODEX_HOME": str(home),
        "OPENAI_API_KEY": episode.api_key,
    }
    # The test's own machine is the sandbox: the policy says what the test has written down.
    free = ("--ephemeral", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    await run_program([CODEX, "exec", *free, "-C", home / "work", episode.task], environ, home)


async def test_codex_from_npm_works_the_world_with_its_shell(tmp_path: Path) -> None:
    async def run(episodes: list[playing.Episode]) -> None:
        for episode in episodes:
            await run_codex(episode, tmp_path / episode.instance)

    async with played(TASKS, run, in_a_shell) as episodes:
        for episode in episodes:
            episode.check_samples(1)
