"""Models of ours are asked with seeds that follow from what is asked for; others are asked as they are configured."""

import pytest

from agentevolver.llm import LLM, LLMReply, LLMSettings, Role, ServedModel
from agentevolver.utils import seeds

ASK = [{"role": "user", "content": "which steps were good?"}]


@pytest.fixture
def asked(monkeypatch):
    """The seeds that requests are sent with."""
    sent = []

    async def send(self, endpoint, messages, parameters):
        sent.append(parameters.get("seed"))
        return LLMReply("fine", 1, 1, 0.0, False, "stop")

    monkeypatch.setattr(LLM, "_send", send)
    return sent


async def seeds_of(asked, llm, rollout, times=2, **sampling):
    asked.clear()
    with seeds.drawing(1, "g", rollout):
        for _ in range(times):
            await llm.chat(Role.ATTRIBUTOR, ASK, **sampling)
    return list(asked)


@pytest.mark.parametrize("base_url", ["offline", "policy"])
async def test_a_question_of_a_rollout_has_a_seed_of_its_own_which_it_has_again_when_the_rollout_is_done_again(
    asked, base_url, monkeypatch
):
    async with LLM(
        LLMSettings(base_url=base_url, api_key_env=None), policy=ServedModel("http://127.0.0.1:9/v1", "p")
    ) as llm:
        first = await seeds_of(asked, llm, 0)
        assert len(set(first)) == 2 and None not in first
        assert await seeds_of(asked, llm, 0) == first and not set(await seeds_of(asked, llm, 1)) & set(first)
        assert await seeds_of(asked, llm, 0, times=1, seed=5) == [5], "a caller's own seed counts"


async def test_other_models_are_given_no_seed_that_nobody_asked_for(asked):
    async with LLM(LLMSettings(base_url="http://127.0.0.1:9/v1", model="m", api_key_env=None)) as llm:
        assert await seeds_of(asked, llm, 0) == [None, None]
