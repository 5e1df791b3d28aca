"""What is accepted is read: a key of verl that nothing would read is refused, and the table of these keys follows
verl's source."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.config.checks import load
from agentevolver.config.leaves import leaves as leaves_of
from agentevolver.config.load import FREE_FORM, compose_defaults, merge, read_overrides
from agentevolver.config.schema import own_places
from agentevolver.config.verl_keys import Layer, check
from agentevolver.config.verl_keys.ignored import IGNORED
from agentevolver.errors import ConfigError

EXAMPLES = Path(__file__).parents[4] / "examples"
BASIC = EXAMPLES / "basic.yaml"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
ATTRIBUTION = "attribution_driven_credit_assignment.enable=true"
VERL = Path(find_spec("verl").submodule_search_locations[0])
# Code of verl that this project replaces, or whose engine it does not use.
REPLACED = re.compile(
    r"experimental/(?!agent_loop/(agent_loop|utils)\.py)|tools/|trainer/ppo/v1/trainer_(separate|colocate)|trainer/main_(?!ppo\.py)|sft_trainer"
    r"|trainer/ppo/(ray_trainer|reward)\.py|megatron|veomni|torchtitan|automodel|mindspeed|sglang|trtllm|mcore|model_merger"
    r"|utils/dataset/(?!__init__)|reward_score|workers/rollout/(schemas|hf_rollout|naive)|trainer/config/(?!algorithm)"
)
MENTION = re.compile(r"""\.(\w+)|["']([\w.-]+)["']""")
# Keys whose name no source of verl mentions, and which have an effect all the same.
READ_WHOLE = (
    r".*nsight_options\..*",  # handed to Ray as a mapping
    r".*\.torch_memory\.kw_args",  # handed to torch
    r".*\.profile_token_(start|end)",  # set of a range, read by its own validation
    r".*_target_",  # Hydra's
)


def basic(*overrides):
    """Look at overrides as `load` does, which takes ten times as long; returns the configuration."""
    config, layer = compose_defaults("cpu"), read_overrides(list(overrides))
    merge(config, layer, "the command line")
    check([Layer(layer, "the command line")], config, compose_defaults("cpu"), own_places())
    return config


def layer_of(path, value):
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def leaves(config):
    """Every key that holds a value, an empty mapping included."""
    return [path for path, _ in leaves_of(OmegaConf.to_container(config, resolve=False))]


@pytest.fixture(scope="module")
def defaults():
    return compose_defaults("cuda")


@pytest.fixture(scope="module")
def verls(defaults):
    """Every key of verl that holds a value."""
    places = own_places()
    return [
        path for path in leaves(defaults) if not any(path == place or path.startswith(f"{place}.") for place in places)
    ]


@pytest.fixture(scope="module")
def read_names():
    """The names that the code of verl which runs here mentions."""
    names = set()
    for root in (VERL, VERL.parent / "transfer_queue"):
        for path in root.rglob("*.py"):
            if root is not VERL or not REPLACED.search(path.relative_to(root).as_posix()):
                found = MENTION.finditer(path.read_text(errors="replace"))
                names |= {name for match in found for text in match.groups() if text for name in text.split(".")}
    return names


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["trainer.v1.trainer_mode=sync"],
            r"trainer.v1.trainer_mode: write agentevolver, agentevolver_async or agentevolver_separate, found 'sync'",
        ),
        (
            ["trainer.v1.sampler.max_off_policy_threshold=2"],
            r"is read where rollouts go on over updates: write trainer.v1.trainer_mode = agentevolver_async too",
        ),
        (["model_engine=megatron"], r"`model_engine` has no effect, verl's keys for FSDP are composed"),
        (
            [ATTRIBUTION, "algorithm.norm_adv_by_std_in_grpo=false"],
            r"`algorithm.norm_adv_by_std_in_grpo` has no effect beside attribution",
        ),
        ([ATTRIBUTION, "algorithm.adv_estimator=rloo"], r"`algorithm.adv_estimator` has no effect beside attribution"),
        (
            ["reward.custom_reward_function.path=mine.py"],
            r"`reward.custom_reward_function.path` is never read, episodes are graded by",
        ),
        (
            ["custom_reward_function.path=mine.py"],
            r"`custom_reward_function.path` is never read, episodes are graded by",
        ),
        (["reward.num_workers=4"], r"`reward.num_workers` is never read"),
        (
            [f"{ROLLOUT}.multi_turn.tool_config_path=tools.yaml"],
            r"multi_turn.tool_config_path` is verl's own tool loop's; .* remove it",
        ),
        ([f"{ROLLOUT}.multi_turn.max_assistant_turns=4"], r"multi_turn.max_steps bounds an episode"),
        (["distillation.enabled=true"], r"`distillation.enabled` has no effect, rollouts ask no teacher"),
        ([f"{ROLLOUT}.trace.backend=weave"], r"a run writes its trajectories itself"),
        ([f"{ACTOR}.grad_clip=0.5"], rf"`{ACTOR}.grad_clip` is never read: write {ACTOR}.optim.clip_grad"),
        ([f"{ACTOR}.clip_ratio=0.1"], r"write actor_rollout_ref.actor.clip_ratio_low and clip_ratio_high"),
        (
            [f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"],
            r"is read with actor_rollout_ref.actor.use_dynamic_bsz = false alone",
        ),
        ([f"{ROLLOUT}.val_kwargs.do_sample=false"], r"write actor_rollout_ref.rollout.val_kwargs.temperature=0"),
        ([f"{ROLLOUT}.agent.default_agent_loop=mine"], r"agent_flow=package.module:Class"),
        (
            ["actor_rollout_ref.model.lora.rank=8"],
            r"is read by Megatron alone: write actor_rollout_ref.model.lora_rank",
        ),
        (["critic.optim.lr=1e-4"], r"`critic.optim.lr` has no effect without a critic"),
        (["ray_kwargs.ray_init.num_gpus=2"], r"is set by the launcher: write ray.num_gpus"),
        (["trainer.device=cuda"], r"is set by the launcher: write device=NAME"),
        (["algorithm.lam=0.9"], r"`algorithm.lam` is read by gae alone"),
        (
            ["task_manager.curriculum.enable=true", "data.shuffle=false"],
            r"`data.shuffle` is not read where epochs are drawn",
        ),
    ],
)
def test_a_key_that_would_have_no_effect_is_refused_with_what_to_do_instead(overrides, message):
    with pytest.raises(ConfigError, match=f"the command line: .*{message}") as caught:
        basic(*overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{ROLLOUT}.multi_turn.max_steps=4"],
        ["algorithm.adv_estimator=rloo"],
        ["algorithm.norm_adv_by_std_in_grpo=false"],
        ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-5", "algorithm.lam=0.9"],
        [f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"],
        ["trainer.resume_mode=resume_path", "trainer.resume_from_path=checkpoints/global_step_3"],
        ["data.shuffle=false"],
    ],
)
def test_a_key_that_is_read_is_taken(overrides):
    config = basic(*overrides)
    for override in overrides:
        key, _, value = override.partition("=")
        assert str(OmegaConf.select(config, key)).lower() in (value, str(float(value)) if "e-" in value else value)


def test_a_default_may_be_written_down():
    basic(
        "reward.num_workers=0",
        "trainer.v1.trainer_mode=agentevolver",
        "critic.strategy=fsdp",
        f"{ROLLOUT}.trace.token2text=false",
    )


def test_the_yaml_of_an_experiment_is_named(tmp_path):
    conf = tmp_path / "mine.yaml"
    conf.write_text("env_service: {env_type: pocket}\nreward: {custom_reward_function: {path: mine.py}}\n")
    with pytest.raises(ConfigError, match=r"mine.yaml: `reward.custom_reward_function.path` is never read"):
        load(conf, ["device=cpu"])


def test_an_ablation_may_switch_off_what_reads_the_experiments_keys(tmp_path):
    conf = tmp_path / "mine.yaml"
    conf.write_text(
        "env_service: {env_type: pocket}\nalgorithm: {adv_estimator: gae, lam: 0.9}\ncritic: {optim: {lr: 1.0e-5}}\n"
    )
    load(conf, ["device=cpu", "algorithm.adv_estimator=grpo"])
    with pytest.raises(ConfigError, match=r"the command line: `critic.optim.lr` has no effect without a critic"):
        load(conf, ["device=cpu", "algorithm.adv_estimator=grpo", "critic.optim.lr=1e-4"])
    with pytest.raises(ConfigError, match=r"mine.yaml: `algorithm.adv_estimator` has no effect beside attribution"):
        load(conf, ["device=cpu", ATTRIBUTION])


def test_every_key_of_verl_that_no_code_in_use_mentions_is_in_the_table(verls, read_names):
    """A new key of verl's that only its other trainers read is found here, at the upgrade."""
    unread = [path for path in verls if path.rpartition(".")[2] not in read_names]
    assert len(unread) > 60, "verl's source is not where this test looks for it"
    allowed = re.compile("|".join(READ_WHOLE))
    missing = [path for path in unread if not allowed.fullmatch(path) and not any(row.matches(path) for row in IGNORED)]
    assert missing == []


def test_the_table_has_no_row_without_a_key(verls, defaults):
    known = [*verls, *(f"{free}.sglang" for free in FREE_FORM), "ray_kwargs.ray_init.env_vars", "device_name"]
    handed_on = ("ray_kwargs.ray_init.", f"{ROLLOUT}.engine_kwargs.")  # mappings of others': any key may stand there
    stale = [
        row.pattern for row in IGNORED if not any(map(row.matches, known)) and not row.pattern.startswith(handed_on)
    ]
    assert stale == []
    for row in IGNORED:
        assert row.why[0].islower() and "\n" not in row.why and not row.why.endswith("."), row.pattern
        assert row.unless is None or OmegaConf.select(defaults, row.unless[0]) is not None, row.pattern


def test_whatever_the_table_names_is_refused_when_it_is_changed(verls, defaults):
    config, places = compose_defaults("cuda"), own_places()
    refused = [path for path in verls if any(row.matches(path) and row.unless is None for row in IGNORED)]
    assert len(refused) > 250
    for path in refused:
        before = config._get_node(path) if "." not in path else OmegaConf.select(config, path, throw_on_missing=False)
        OmegaConf.update(config, path, "another value", force_add=True)
        with pytest.raises(ConfigError, match=re.escape(f"mine: `{path}` ")):
            check([Layer(layer_of(path, "another value"), "mine")], config, defaults, places)
        OmegaConf.update(config, path, before, merge=False)


@pytest.mark.thorough
@pytest.mark.parametrize("conf", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_example_still_composes(conf, device, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    load(conf, [f"device={device}"])
