"""PocketWorld as verl's tools, and what verl's run is told of our configuration."""

import asyncio

import pytest
from omegaconf import OmegaConf

from agentevolver.config.load import compose_verl
from benchmarks.peers_verl import PARAMS, SAME
from env_service.local import LocalClient

TASK = "note_add.k7.0"  # "make a note mug and tag it old"


def test_every_key_that_is_taken_over_is_one_of_verls():
    verls, missing = compose_verl(), object()
    unknown = {key for key in SAME if OmegaConf.select(verls, key, default=missing) is missing}
    # What verl's yaml asks for or leaves to its dataclasses.
    rollout, precision = "actor_rollout_ref.rollout", "fsdp_config.mixed_precision"
    assert unknown == {
        f"{rollout}.name",
        f"{rollout}.enable_sleep_mode",
        *(f"actor_rollout_ref.{part}.{precision}" for part in ("actor", "ref")),
    }


@pytest.mark.thorough
def test_an_episode_of_verls_tools_is_graded_by_the_instance_that_its_first_call_opened(monkeypatch):
    from verl.experimental.agent_loop.tool_agent_loop import AgentData
    from verl.tools.schemas import OpenAIFunctionToolSchema

    from benchmarks.verl_alone import tools

    def tool(name, client):
        monkeypatch.setattr(tools, "client_of", lambda url: client)
        function = {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}
        schema = OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})
        return tools.PocketTool({"url": "local", "max_turns": 12, "params": PARAMS}, schema)

    async def play():
        client = LocalClient(["pocket"])
        episode = AgentData([], None, None, None, None, {}, "r", {"task_id": TASK})
        note, _, _ = await tool("note_add", client).execute("", {"word": "mug", "tag": "old"}, agent_data=episode)
        between = episode.assistant_turns
        bye, _, _ = await tool("done", client).execute("", {}, agent_data=episode)
        score = await tools.compute_score(extra_info=dict(episode.extra_fields), url="local")
        return note.text, between, bye.text, episode, score

    note, between, bye, episode, score = asyncio.run(play())
    assert note.startswith("ok") and (bye, score) == ("bye", 1.0)
    assert (between, episode.assistant_turns) == (0, 12), "the reply after the end is the last"
    assert asyncio.run(tools.compute_score(extra_info={}, url="local")) == 0.0
