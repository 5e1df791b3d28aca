"""The look at a few openings before anything heavy starts: what the policy will see first is measured, the template's words included."""

import pytest

from agentevolver import probe as probing
from agentevolver.schema import Task
from agentevolver.settings import ConfigError, load
from context_manager.chat import ChatRenderer


class OneOpening:
    """An environment whose every episode opens with the same two messages."""

    def __init__(self, *_, **__):
        self.open = 0

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        assert self.open == 0

    async def create_instance(self, *_):
        self.open += 1
        return {"state": [{"role": "system", "content": "use the tools"}, {"role": "user", "content": "add note milk"}]}

    async def release_instance(self, _):
        self.open -= 1


@pytest.fixture
def measured(monkeypatch):
    from transformers import AutoTokenizer

    from agentevolver.offline import seed_policy_path

    monkeypatch.setattr(probing, "AsyncEnvClient", OneOpening)
    renderer = ChatRenderer(AutoTokenizer.from_pretrained(seed_policy_path()))

    async def measure(*items):
        settings = load(None, ["device=cpu", *items]).settings
        return await probing.probe(settings, [Task(task_id="note_add.k1.1", env_type="pocket")], renderer)

    return measure


async def test_the_opening_is_measured_as_the_context_template_shows_it(measured):
    plain = await measured()
    longer = ["actor_rollout_ref.rollout.max_model_len=960", "data.max_prompt_length=400"]
    guided = await measured("actor_rollout_ref.rollout.context_template=self_managed", *longer)
    assert 0 < plain < guided


async def test_an_opening_that_only_the_templates_words_make_too_long_is_refused_before_anything_starts(measured):
    plain = await measured()
    assert await measured(f"data.max_prompt_length={plain}") == plain
    with pytest.raises(ConfigError, match=f"data.max_prompt_length = {plain}, but the opening messages of task 'note_add.k1.1' have"):
        await measured(f"data.max_prompt_length={plain}", "actor_rollout_ref.rollout.context_template=self_managed")
