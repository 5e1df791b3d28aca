"""The client of the rollout servers with and without verl's balancer."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from agentevolver.rollout.sole_server import client_of

CONFIG = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})


class Remote:
    """A method of an actor, which keeps account of its calls."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    async def remote(self, **asked):
        self.asked.append(asked)
        return self.answer


class Manager:
    """verl's manager of some servers, whose balancer nobody may ask."""

    global_load_balancer = None

    def __init__(self, servers, router=None):
        self.server_addresses, self.server_handles = [f"here:{i}" for i in range(len(servers))], servers
        self.rollout_config = SimpleNamespace(router_config_path=router)

    def get_client(self, client_cls=None, **given):
        return (client_cls or LLMServerClient)(config=CONFIG, load_balancer_handle=self.global_load_balancer, **given)


async def test_the_only_server_is_asked_directly():
    server = SimpleNamespace(generate=Remote(TokenOutput(token_ids=[5], log_probs=[-1.0], extra_fields={})))
    client = client_of(Manager([server]))
    for _ in range(2):
        answered = await client.generate("r", prompt_ids=[1, 2], sampling_params={"max_tokens": 3})
        assert answered.token_ids == [5]
    first, second = server.generate.asked
    assert first["prompt_ids"] == second["prompt_ids"] == [1, 2] and first["request_id"] != second["request_id"]
    assert await client._acquire_server("role", prompt_ids=[]) == ("here:0", server)


@pytest.mark.parametrize("manager", [Manager([None, None]), Manager([None], router="router.yaml")])
def test_where_there_is_something_to_choose_verl_balances(manager):
    assert type(client_of(manager)) is LLMServerClient
