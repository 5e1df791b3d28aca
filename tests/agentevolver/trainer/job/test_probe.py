from dataclasses import replace
from typing import ClassVar

import pytest
from omegaconf import OmegaConf

from agentevolver.config.checks import load
from agentevolver.trainer.job import main, questioning
from agentevolver.trainer.job import main as probing
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError
from context_manager.chat import ChatRenderer
from env_service.client import EnvRequestError
from env_service.contract import NO_NATIVE_TOOLS
from tests.chat_tokenizers import CHATML, build_tokenizer
from tests.real_tokenizers import build_family
from tests.tools_of_families import TOOL_FAMILIES

ONE = (Task(task_id="note_add.k1.1", env_type="pocket"),)


class OneOpening:
    """An environment whose every episode opens with the same two messages, longer ones for the tasks and kinds in
    `longer`."""

    opened: ClassVar[list[tuple[str, bool]]] = []
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
        self.opened.append(kind)
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

    from agentevolver.recipes.offline.seed import seed_policy_path

    monkeypatch.setattr(probing, "AsyncEnvClient", OneOpening)
    monkeypatch.setattr(OneOpening, "opened", [])
    monkeypatch.setattr(OneOpening, "longer", {})
    renderer = ChatRenderer(AutoTokenizer.from_pretrained(seed_policy_path()))

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


async def test_eight_of_many_tasks_are_opened_where_openings_are_far_from_the_limit(measured):
    await measured("data.max_prompt_length=192", tasks=tasks_of(40))
    assert len(OneOpening.opened) == len(set(OneOpening.opened)) == probing.TASKS


async def test_where_openings_come_near_the_limit_all_are_opened_and_the_one_that_exceeds_it_is_found(measured):
    plain = await measured()
    OneOpening.longer[("note_add.k1.37", False)] = 3
    with pytest.raises(
        ConfigError,
        match=rf"1 of 40 tasks of pocket are longer, up to {plain + 3} tokens: set it to {plain + 3} or more",
    ):
        await measured(f"data.max_prompt_length={plain}", tasks=tasks_of(40))
    assert await measured(f"data.max_prompt_length={plain + 3}", tasks=tasks_of(40)) == plain + 3


@pytest.mark.thorough
async def test_training_tasks_validation_tasks_and_worlds_without_a_goal_are_each_looked_at(measured):
    plain = await measured()
    limit = f"data.max_prompt_length={plain}"
    kinds = {
        "tasks of pocket are": {},
        "validation tasks of pocket are": {"metadata": {"validation": True}},
        "tasks of pocket without a goal, which synthetic ones begin as, are": {"open_query": True},
    }
    for words, fields in kinds.items():
        one = tasks_of(1, **fields)
        OneOpening.longer = {("note_add.k1.0", bool(fields.get("open_query"))): 1}
        with pytest.raises(ConfigError, match=rf"1 of \d+ {words} longer"):
            await measured(
                limit, tasks=[*[replace(task, task_id=f"other.k1.{i}") for i, task in enumerate(tasks_of(99))], *one]
            )


SMALL = ("data.train_batch_size=3", "actor_rollout_ref.actor.ppo_mini_batch_size=3")


def test_fewer_tasks_than_a_step_takes_are_refused_before_one_is_opened(monkeypatch, tmp_path):
    settings = load(None, ["device=cpu", f"experiment.root={tmp_path}", "env_service.env_type=pocket", *SMALL]).settings
    monkeypatch.setattr(main, "list_tasks", lambda *_: (tasks_of(2), tasks_of(2)))
    monkeypatch.setattr(main, "make_renderer", lambda _: pytest.fail("the tokenizer is read first"))
    with pytest.raises(ConfigError, match=r"data.train_split has 2 tasks, fewer than data.train_batch_size = 3"):
        main.prepare(OmegaConf.create(), settings)
    main.check_size(OmegaConf.create({"trainer": {"val_only": True}}), settings, tasks_of(2))
    main.check_size(OmegaConf.create({"trainer": {"val_only": False}}), settings, tasks_of(3))


def test_openings_are_measured_before_tasks_are_made_for_money(monkeypatch, tmp_path):
    """In the order of the main job: the lists, the openings of what is there and of worlds without a goal, the making,
    its openings."""
    wanted = ("n=1", "mixture.synthetic_data_ratio=1", "mixture.use_original_tasks=false")
    items = ["device=cpu", f"experiment.root={tmp_path}", "env_service.env_type=pocket", *SMALL]
    settings = load(None, [*items, *(f"task_manager.{item}" for item in wanted)]).settings
    own, held_out = tasks_of(3), tasks_of(2, metadata={"validation": True})
    made = tasks_of(2, open_query=True, query="pay bob")
    seen = []
    monkeypatch.setattr(main, "list_tasks", lambda *_: (own, held_out))
    monkeypatch.setattr(main, "make_renderer", lambda _: None)
    monkeypatch.setattr(main, "check_chat_template", lambda *_: None)
    monkeypatch.setattr(
        main, "check_episodes", lambda _, tasks, __: seen.append([(t.open_query, t.query) for t in tasks])
    )
    monkeypatch.setattr(questioning, "prepare", lambda *_: seen.append("made") or made)
    main.prepare(OmegaConf.create(), settings)
    assert seen == [[(True, None)] * 3 + [(False, None)] * 2, "made", [(True, "pay bob")] * 2]


LOOK = {"type": "function", "function": {"name": "look", "description": "look at a place " * 9}}


@pytest.mark.thorough
async def test_tools_of_native_calls_count_in_the_opening(measured, monkeypatch):
    plain = await measured()
    opened = OneOpening.create_instance

    async def with_tools(self, env_type, task_id, instance_id, params):
        made = await opened(self, env_type, task_id, instance_id, params)
        return {**made, "info": {"tools": [LOOK]}} if params.get("native_tools") else made

    monkeypatch.setattr(OneOpening, "create_instance", with_tools)
    assert await measured() == plain
    template = "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.get_chat_template", lambda *_, **__: template)
    assert await measured("actor_rollout_ref.rollout.tool_format=hermes") > await measured()


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_tool_format_in_an_environment_without_native_tools_is_refused(measured, monkeypatch, refuses):
    if refuses:

        async def refuse(self, env_type, task_id, instance_id, params):
            raise EnvRequestError(f"OneOpening {NO_NATIVE_TOOLS}; create without the parameter native_tools")

        monkeypatch.setattr(OneOpening, "create_instance", refuse)
    with pytest.raises(ConfigError, match=r"the environment '.*' hands over no tools .*tool_format to none") as caught:
        await measured("actor_rollout_ref.rollout.tool_format=hermes")
    assert "\n" not in str(caught.value)


async def test_an_opening_with_an_image_is_refused_before_anything_starts(measured, monkeypatch):
    create = OneOpening.create_instance

    async def shows(self, *call):
        state = await create(self, *call)
        state["state"][1]["content"] = [{"type": "image_url", "image_url": {"url": "x"}}]
        return state

    monkeypatch.setattr(OneOpening, "create_instance", shows)
    with pytest.raises(ConfigError, match=r"'pocket', task 'note_add.k1.1': .* content part of the type image_url"):
        await measured()


class TestTheChatTemplate:
    """It is looked at before anything heavy starts."""

    def check(self, family, *items, **template_kwargs):
        renderer = ChatRenderer(build_family(TOOL_FAMILIES[family]), template_kwargs)
        main.check_chat_template(load(None, ["device=cpu", *items]).settings, renderer)

    def test_what_drifts_is_a_warning_that_says_what_to_set(self, capsys, caplog):
        self.check("qwen3")
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("warning: with context_template causal and observation_role user the chat template")
        assert "identical with context_template causal and observation_role tool" in line
        assert line.removeprefix("warning: ") in caplog.text

    def test_what_is_refused_ends_the_run_in_one_line(self):
        with pytest.raises(
            ConfigError, match=r"context_template = sliding_window cannot be used .*roles must alternate"
        ):
            self.check("mistral_v7", "actor_rollout_ref.rollout.context_template=sliding_window")


def test_a_format_that_the_chat_template_does_not_tell_is_refused_before_anything_is_opened(monkeypatch, tmp_path):
    overrides = ["device=cpu", f"experiment.root={tmp_path}", "actor_rollout_ref.rollout.tool_format=auto"]
    monkeypatch.setattr(main, "list_tasks", lambda *_: (tasks_of(8), []))
    monkeypatch.setattr(main, "make_renderer", lambda _: ChatRenderer(build_tokenizer(CHATML, "<|im_end|>")))
    monkeypatch.setattr(main, "check_episodes", lambda *_: pytest.fail("an episode was opened"))
    with pytest.raises(ConfigError, match=r"tool_format.*auto.*hermes"):
        main.prepare(OmegaConf.create(), load(None, overrides).settings)
