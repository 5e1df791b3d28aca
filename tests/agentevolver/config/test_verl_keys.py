"""verl's keys: one that nothing reads is refused, a new one too, and so is a value that verl could not use."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.config import verl_keys
from agentevolver.config.checks import for_verl, load
from agentevolver.config.layers import Layer, read_overrides
from agentevolver.config.load import compose_defaults, merge
from agentevolver.config.schema import own_places
from agentevolver.config.trees import FREE_FORM, leaves
from agentevolver.config.verl_keys import ACTOR, MODEL, ROLLOUT, ask_verl, check
from agentevolver.utils.errors import ConfigError

BASIC = Path(__file__).parents[3] / "examples" / "basic.yaml"
ATTRIBUTION = "attribution_driven_credit_assignment.enable=true"
VERL = Path(find_spec("verl").submodule_search_locations[0])
# Code of verl that this project replaces, or whose engine it does not use.
REPLACED = re.compile(
    r"experimental/(?!agent_loop/(agent_loop|utils)\.py)|tools/|trainer/ppo/v1/trainer_(separate|colocate)|trainer/main_(?!ppo\.py)|sft_trainer"
    r"|trainer/ppo/(ray_trainer|reward)\.py|megatron|veomni|torchtitan|automodel|mindspeed|sglang|trtllm|mcore|model_merger"
    r"|utils/dataset/(?!__init__)|reward_score|workers/rollout/(schemas|hf_rollout|naive)|trainer/config/(?!algorithm)"
)
MENTION = re.compile(r"""\.(\w+)|["']([\w.-]+)["']""")
# Keys whose name no source of verl mentions, and which have an effect all the same: handed on as mappings to Ray and
# torch, read by the section's own validation, or Hydra's.
READ_WHOLE = r".*nsight_options\..*|.*\.torch_memory\.kw_args|.*\.profile_token_(start|end)|.*_target_"


def looked_at(*overrides):
    """Look at overrides as `load` does, which takes ten times as long; returns what only verl can judge."""
    config, layer = compose_defaults("cpu"), read_overrides(list(overrides))
    merge(config, layer, "the command line")
    return check([Layer(layer, "the command line")], config, compose_defaults("cpu"), own_places())


@pytest.fixture(scope="module")
def verls():
    """Every key of verl that holds a value."""
    places = (*own_places(), *FREE_FORM)
    paths = [path for path, _ in leaves(OmegaConf.to_container(compose_defaults("cuda"), resolve=False))]
    return [path for path in paths if not any(path == place or path.startswith(f"{place}.") for place in places)]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model_engine=megatron"], "`model_engine` has no effect: nothing reads it here"),
        (
            [ATTRIBUTION, "algorithm.adv_estimator=rloo"],
            r"`algorithm.adv_estimator` has an effect only with .*enable = False",
        ),
        ([f"{ACTOR}.clip_ratio=0.1"], f"write {ACTOR}.clip_ratio_low and clip_ratio_high"),
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"], rf"only with {ACTOR}.use_dynamic_bsz = False"),
        (["critic.optim.lr=1e-4"], "`critic.optim.lr` has an effect only with algorithm.adv_estimator = gae"),
    ],
)
def test_a_key_that_would_have_no_effect_is_refused_with_what_to_do_instead(overrides, message):
    with pytest.raises(ConfigError, match=f"^the command line: .*{message}"):
        looked_at(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{ROLLOUT}.multi_turn.max_steps=4"],
        ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-5", "algorithm.lam=0.9"],
        [f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"],
        ["data.shuffle=false", "trainer.total_training_steps=null", "trainer.logger=[console,tensorboard]"],
        ["reward.num_workers=0", "critic.strategy=fsdp"],  # defaults, written down
    ],
)
def test_a_key_that_is_read_is_taken_with_a_value_that_can_be_used(overrides):
    assert looked_at(*overrides) == ()


@pytest.mark.thorough
def test_an_ablation_may_switch_off_what_reads_the_experiments_keys(tmp_path):
    conf = tmp_path / "mine.yaml"
    conf.write_text(
        "env_service: {env_type: pocket}\nalgorithm: {adv_estimator: gae, lam: 0.9}\ncritic: {optim: {lr: 1.0e-5}}\n"
    )
    load(conf, ["device=cpu", "algorithm.adv_estimator=grpo"])
    with pytest.raises(ConfigError, match=r"the command line: `critic.optim.lr` has an effect"):
        load(conf, ["device=cpu", "algorithm.adv_estimator=grpo", "critic.optim.lr=1e-4"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.total_training_steps=abc", "write an integer, found 'abc'"),
        ("trainer.logger=[nonsense]", "write tensorboard, wandb, .* or rl_insight, found"),
        (f"{ACTOR}.optim.lr=.nan", "write a number, found nan"),
        (f"{ACTOR}.clip_ratio_high=-3", "write a number 0 or more, found -3"),
        (f"{ROLLOUT}.gpu_memory_utilization=60", "write a number above 0 and at most 1, found 60"),
        (f"{ROLLOUT}.top_p=0.9", "write a number of 1 .*found 0.9"),
        (f"{ROLLOUT}.top_k=20", "write a number of -1 .*found 20"),
    ],
)
def test_a_value_that_verl_could_not_use_is_one_line_that_says_what_is_wanted(override, message):
    with pytest.raises(ConfigError, match=rf"^the command line: {re.escape(override.partition('=')[0])}: .*{message}"):
        looked_at(override)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{ACTOR}.optim.betas=[0.9,x]", rf"^{ACTOR}.optim.betas: input should be a valid number, found \[0.9, 'x'\]"),
        (f"{ROLLOUT}.val_kwargs.top_p=null", f"^{ROLLOUT}.val_kwargs.top_p: input should be a valid number"),
        (f"{MODEL}.target_modules=[q_proj]", None),
    ],
)
def test_what_the_tables_cannot_judge_verls_dataclasses_do(override, message):
    undecided = looked_at(override)
    assert undecided == (override.partition("=")[0],)
    config = compose_defaults("cpu")
    merge(config, {"env_service": {"env_type": "pocket"}}, "test")
    merge(config, read_overrides([override]), "test")
    if message is None:
        ask_verl(for_verl(config), undecided)
        return
    with pytest.raises(ConfigError, match=message):
        ask_verl(for_verl(config), undecided)


@pytest.mark.thorough
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_verl_takes_the_defaults_and_refuses_what_does_not_go_together(device):
    config = for_verl(load(BASIC, [f"device={device}"]).config)
    ask_verl(config)
    config.actor_rollout_ref.actor.use_dynamic_bsz = False
    with pytest.raises(ConfigError, match=r"verl refuses it: .*ppo_micro_batch_size_per_gpu"):
        ask_verl(config)


# -- the tables follow verl


def test_every_key_of_verl_that_no_code_in_use_mentions_is_refused(verls):
    """A new key of verl's that only its other trainers read is found here, at the upgrade."""
    read = set()
    for root in (VERL, VERL.parent / "transfer_queue"):
        for path in root.rglob("*.py"):
            if root is not VERL or not REPLACED.search(path.relative_to(root).as_posix()):
                found = MENTION.finditer(path.read_text(errors="replace"))
                read |= {name for match in found for text in match.groups() if text for name in text.split(".")}
    unread = [path for path in verls if path.rpartition(".")[2] not in read and not re.fullmatch(READ_WHOLE, path)]
    assert len(unread) > 60, "verl's source is not where this test looks for it"
    patterns = " ".join([*verl_keys.UNREAD.values(), *(row[0] for row in verl_keys.READ_WITH)])
    assert [path for path in unread if not verl_keys._matches(path, patterns)] == []
