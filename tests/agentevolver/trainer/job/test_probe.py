from typing import ClassVar

import pytest
from omegaconf import OmegaConf

from agentevolver.config.checks import load
from agentevolver.trainer.job import main
from agentevolver.trainer.job import openings as probing
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError
from context_manager.chat import ChatRenderer
from env_service.client import EnvRequestError
from env_service.contract import NO_NATIVE_TOOLS
from tests.real_tokenizers import build_family
from tests.tiny_model import tiny_model_path
from tests.tools_of_families import TOOL_FAMILIES

ONE = (Task(task_id="note_add.k1.1", env_type="pocket"),)


class OneOpening:
    """An environment whose every episode opens with the same two messages, longer ones for the tasks and kinds in
    `longer`."""

    longer: ClassVar[dict[tuple[str, bool], int]] = {}

    def __init__(self, *_, **__):
        self.open = 0

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        assert self.open == 0

    async def create_instance(self, env_type, task_id, instance_id, params):
        self.open += 1
        kind = task_id, params["is_open_query"]
        more = " milk" * self.longer.get(kind, 0)
        return {
            "state": [
                {"role": "system", "content": "use the tools"},
                {"role": "user", "content": f"add note milk{more}"},
            ]
        }

    async def release_instance(self, _):
        self.open -= 1


@pytest.fixture
def measured(monkeypatch):
    from transformers import AutoTokenizer

    monkeypatch.setattr(probing, "AsyncEnvClient", OneOpening)
    monkeypatch.setattr(OneOpening, "longer", {})
    renderer = ChatRenderer(AutoTokenizer.from_pretrained(tiny_model_path()))

    async def measure(*items, tasks=ONE):
        settings = load(None, ["device=cpu", "env_service.env_type=pocket", *items]).settings
        return await probing.probe(settings, tasks, renderer)

    return measure


async def test_an_opening_that_only_the_templates_words_make_too_long_is_refused_before_anything_starts(measured):
    plain = await measured()
    assert await measured(f"data.max_prompt_length={plain}") == plain
    with pytest.raises(
        ConfigError, match=f"max_prompt_length = {plain}, but the opening messages of 1 of 1 tasks of pocket are longer"
    ):
        await measured(f"data.max_prompt_length={plain}", "actor_rollout_ref.rollout.context_template=self_managed")


def tasks_of(count, **fields):
    return [Task(task_id=f"note_add.k1.{index}", env_type="pocket", **fields) for index in range(count)]


async def test_where_openings_come_near_the_limit_all_are_opened_and_the_one_that_exceeds_it_is_found(measured):
    plain = await measured()
    others = [task.task_id for task in tasks_of(40) if task not in probing.chosen(tasks_of(40))]
    OneOpening.longer[(others[0], False)] = 3
    with pytest.raises(
        ConfigError,
        match=rf"1 of 40 tasks of pocket are longer, up to {plain + 15} tokens: set it to {plain + 15} or more",
    ):
        await measured(f"data.max_prompt_length={plain}", tasks=tasks_of(40))
    assert await measured(f"data.max_prompt_length={plain + 15}", tasks=tasks_of(40)) == plain + 15


SMALL = ("data.train_batch_size=3", "actor_rollout_ref.actor.ppo_mini_batch_size=3")


def test_fewer_tasks_than_a_step_takes_are_refused_before_one_is_opened(monkeypatch, tmp_path):
    settings = load(None, ["device=cpu", f"experiment.root={tmp_path}", "env_service.env_type=pocket", *SMALL]).settings
    monkeypatch.setattr(main, "list_tasks", lambda *_: (tasks_of(2), tasks_of(2)))
    monkeypatch.setattr(main, "make_renderer", lambda _: pytest.fail("the tokenizer is read first"))
    with pytest.raises(ConfigError, match=r"data.train_split has 2 tasks, fewer than data.train_batch_size = 3"):
        main.prepare(OmegaConf.create(), settings)
    main.check_size(OmegaConf.create({"trainer": {"val_only": True}}), settings, tasks_of(2))
    main.check_size(OmegaConf.create({"trainer": {"val_only": False}}), settings, tasks_of(3))


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_tool_format_in_an_environment_without_native_tools_is_refused(measured, monkeypatch, refuses):
    if refuses:

        async def refuse(self, env_type, task_id, instance_id, params):
            raise EnvRequestError(f"OneOpening {NO_NATIVE_TOOLS}; create without the parameter native_tools")

        monkeypatch.setattr(OneOpening, "create_instance", refuse)
    with pytest.raises(ConfigError, match=r"the environment '.*' lists no tools .*tool_format to none") as caught:
        await measured("actor_rollout_ref.rollout.tool_format=hermes")
    assert "\n" not in str(caught.value)


def test_a_chat_template_that_refuses_the_context_template_ends_the_run():
    renderer = ChatRenderer(build_family(TOOL_FAMILIES["mistral_v7"]))
    items = ["device=cpu", "actor_rollout_ref.rollout.context_template=sliding_window"]
    with pytest.raises(ConfigError, match=r"context_template = sliding_window cannot be used .*roles must alternate"):
        main.check_chat_template(load(None, items).settings, renderer)
