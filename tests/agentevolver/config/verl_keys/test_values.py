"""A value that verl could not use is refused before anything is started: its kind, its name, its bounds."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.config.checks import load
from agentevolver.config.load import FREE_FORM, compose_defaults, compose_verl
from agentevolver.config.loss_modes import BOOSTED
from agentevolver.config.schema import own_places
from agentevolver.config.verl_keys import values
from agentevolver.config.verl_keys.check import _check_value
from agentevolver.config.verl_keys.ignored import ACTOR, IGNORED, ROLLOUT
from agentevolver.config.verl_keys.kinds import kind_of
from agentevolver.config.verl_keys.values import BOUNDS, CHOICES, ESTIMATORS_WITHOUT_DATA, KINDS, LOGGERS
from agentevolver.errors import ConfigError
from experience_manager.settings import PRESETS, verl_overrides
from tests.agentevolver.config.verl_keys.test_ignored import basic, leaves

WRITTEN_BY_THE_RUN = ("data.train_files", "data.val_files")  # refused as a whole
BASIC = Path(__file__).parents[4] / "examples" / "basic.yaml"


def source(package, path):
    return (Path(find_spec(package).submodule_search_locations[0]) / path).read_text()


@pytest.fixture(scope="module")
def defaults():
    return compose_defaults("cuda")


def checked(config):
    """The keys of verl that hold a value which is looked at, with it."""
    places = (*own_places(), *FREE_FORM)
    for path in leaves(config):
        if any(path == place or path.startswith(f"{place}.") for place in places) or path.endswith("_target_"):
            continue
        if path not in WRITTEN_BY_THE_RUN and not any(row.matches(path) and row.unless is None for row in IGNORED):
            value = OmegaConf.select(config, path)
            yield path, OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.total_training_steps=abc", "write an integer or null, found 'abc'"),
        ("trainer.total_training_steps=0", "write a number above 0, found 0"),
        ("trainer.total_training_steps=2.5", "write an integer or null, found 2.5"),
        ("trainer.total_epochs=true", "write an integer, found True"),
        ("trainer.save_freq=often", "write an integer, found 'often'"),
        ("trainer.logger=[nonsense]", "write tensorboard, wandb, .* or rl_insight, found 'nonsense'"),
        ("trainer.logger=[3]", r"write text or a list \(each item text\), found \[3\]"),
        ("trainer.project_name=2026", "write text, in quotes, found 2026"),
        ("trainer.resume_mode=autom", "write auto, disable or resume_path, found 'autom'"),
        ("trainer.val_before_train=maybe", "write true or false, found 'maybe'"),
        ("data.train_batch_size='\"8\"'", "write an integer, found"),
        ("data.dataloader_num_workers=-1", "write a number 0 or more, found -1"),
        (f"{ACTOR}.optim.lr=fast", "write a number, found 'fast'"),
        (f"{ACTOR}.optim.lr=-1e-6", "write a number 0 or more, found -1e-06"),
        (f"{ACTOR}.optim.lr=.nan", "write a number, found nan"),
        (f"{ACTOR}.optim.betas=[0.9,1.5]", "write a number from 0 to below 1, found 1.5"),
        (f"{ACTOR}.optim.betas=0.9", r"write a list \(each item a number\), found 0.9"),
        (f"{ACTOR}.clip_ratio_high=-3", "write a number 0 or more, found -3"),
        (f"{ACTOR}.clip_ratio_c=1", "write a number above 1, found 1"),
        (f"{ACTOR}.strategy=megatron", "write fsdp or fsdp2, found 'megatron'"),
        (f"{ACTOR}.policy_loss.loss_mode=vanila", "write vanilla, .* or trajectory, found 'vanila'"),
        (f"{ACTOR}.loss_agg_mode=mean", "found 'mean'"),
        (f"{ACTOR}.fsdp_config.param_offload=1", "write true or false, found 1"),
        (f"{ACTOR}.checkpoint.save_contents=[model,optimiser]", "found 'optimiser'"),
        (f"{ROLLOUT}.gpu_memory_utilization=60", "write a number above 0 and at most 1, found 60"),
        (f"{ROLLOUT}.temperature=0", "write a number above 0, found 0"),
        (f"{ROLLOUT}.name=sglang", "write vllm, found 'sglang'"),
        (f"{ROLLOUT}.enforce_eager=null", "write true or false, found None"),
        ("algorithm.adv_estimator=grop", "found 'grop'"),
        ("algorithm.adv_estimator=remax", "found 'remax'"),
    ],
)
def test_a_value_that_verl_could_not_use_is_one_line_that_says_what_is_wanted(override, message):
    key = override.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^the command line: {re.escape(key)}: .*{message}") as caught:
        basic(override)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "trainer.total_training_steps=null",
        "trainer.logger=console",
        "trainer.logger=[console,tensorboard]",
        "data.seed=null",
        f"{ACTOR}.optim.lr=1",
        f"{ACTOR}.optim.lr=${{oc.decode:'1e-5'}}",
        f"{ROLLOUT}.val_kwargs.temperature=0",
        f"{ROLLOUT}.top_k=-1",
        f"{ACTOR}.policy_loss.loss_mode=trajectory",
        "actor_rollout_ref.model.target_modules=[q_proj]",
    ],
)
def test_a_value_that_verl_can_use_is_taken(override):
    basic(override)


def test_an_experiment_may_be_called_by_a_number():
    assert load(BASIC, ["device=cpu", "trainer.experiment_name=2026"]).config.trainer.experiment_name == "2026"


def test_a_logger_whose_package_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setitem(values.LOGGERS, "wandb", "no_such_package_at_all")
    with pytest.raises(ConfigError, match="wandb needs the package no_such_package_at_all, which is not installed"):
        load(BASIC, ["device=cpu", "trainer.logger=[console,wandb]"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config", [compose_defaults("cpu"), compose_defaults("cuda"), compose_verl()], ids=["cpu", "cuda", "verl"]
)
def test_no_default_is_refused(config, defaults):
    config = config.copy()
    OmegaConf.update(config, f"{ROLLOUT}.name", "vllm")
    looked_at = dict(checked(config))
    assert len(looked_at) > 300
    # verl's own trainer, in whose place agentevolver.yaml names one of ours.
    others = {"trainer.v1.trainer_mode"} if config.trainer.v1.trainer_mode == "sync" else set()
    allowed = {"actor_rollout_ref.ref.fsdp_config.wrap_policy", *others}
    for path, value in looked_at.items():
        if path not in allowed:
            _check_value(path, value, "defaults", defaults)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_is_refused(preset, defaults):
    for path, value in verl_overrides(preset).items():
        _check_value(path, value, preset, defaults)


def test_no_key_takes_every_value(defaults):
    """A key of verl's without a dataclass and without a default to see its kind by stands in the table."""
    untyped = [path for path, _ in checked(defaults) if (KINDS.get(path) or kind_of(path, defaults)) is None]
    assert untyped == []


@pytest.mark.thorough
def test_a_value_of_another_kind_is_refused_at_every_key(defaults):
    wrong = ["no such value", 1.5, 7, True, [["x"]], {"no": "such"}]
    for path, _ in checked(defaults):
        kind = KINDS.get(path) or kind_of(path, defaults)
        if not kind.names:
            continue
        value = next(value for value in wrong if not kind.takes(value))
        with pytest.raises(ConfigError, match=re.escape(f"mine: {path}: write ")):
            _check_value(path, value, "mine", defaults)


def test_every_bound_and_every_choice_is_that_of_a_key(defaults):
    keys = [path for path, _ in checked(defaults)] + [
        path for path in leaves(defaults) if path.startswith("actor_rollout_ref")
    ]
    for bound, pattern in BOUNDS:
        for alternative in pattern.pattern.split("|") if "(" not in pattern.pattern else [pattern.pattern]:
            assert any(re.fullmatch(alternative, key) for key in keys), f"{bound.words}: {alternative}"
    assert [key for key in CHOICES if OmegaConf.select(defaults, key) is None and key != "global_profiler.tool"] == []


# -- the names are verl's
# ---------------------------------------------------------------------------------------------------------------


def test_the_loggers_are_verls():
    (found,) = re.findall(r"supported_backend = (\[.*?\])", source("verl", "utils/tracking.py"), re.DOTALL)
    assert set(LOGGERS) == set(ast.literal_eval(found))


def test_the_loss_modes_are_verls_and_ours():
    found = set(re.findall(r'@register_policy_loss\("(\w+)"\)', source("verl", "trainer/ppo/core_algos.py")))
    assert set(CHOICES[f"{ACTOR}.policy_loss.loss_mode"]) == found | {"trajectory"} and "trajectory" in BOOSTED


def test_the_estimators_are_verls_but_for_those_that_lack_their_data():
    text = source("verl", "trainer/ppo/core_algos.py").partition("class AdvantageEstimator")[2].partition("\n\n\n")[0]
    found = set(re.findall(r'^    [A-Z_]+ = "(\w+)"', text, re.MULTILINE))
    assert set(CHOICES["algorithm.adv_estimator"]) | set(ESTIMATORS_WITHOUT_DATA) == found
    trainer = "".join(
        source("verl", f"trainer/ppo/v1/{name}.py") for name in ("trainer_base", "trainer_sync", "agent_loop_tq")
    )
    assert "reward_baselines" not in trainer and "sum_pi_squared" not in trainer


def test_the_ways_to_aggregate_a_loss_are_verls():
    (found,) = re.findall(r"valid_loss_agg_modes = (\[.*?\])", source("verl", "workers/config/actor.py"), re.DOTALL)
    assert set(CHOICES[f"{ACTOR}.loss_agg_mode"]) == set(ast.literal_eval(found))


def test_the_names_of_kl_estimates_are_verls():
    text = source("verl", "trainer/ppo/core_algos.py").partition("def kl_penalty_forward")[2]
    found = set(re.findall(r'"(\w+)"', " ".join(re.findall(r"if kl_penalty (?:in|==) (.*):", text))))
    assert {name for name in CHOICES[f"{ACTOR}.kl_loss_type"] if not name.endswith("+")} == found - {"full"}, (
        "full is not implemented"
    )


def test_the_load_formats_are_vllms():
    (found,) = re.findall(
        r"LoadFormats = Literal(\[.*?\])", source("vllm", "model_executor/model_loader/__init__.py"), re.DOTALL
    )
    assert set(CHOICES[f"{ROLLOUT}.load_format"]) == set(ast.literal_eval(found))


def test_an_adapter_is_not_saved_as_a_whole_model():
    contents = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
    with pytest.raises(
        ConfigError,
        match=r"save_contents: hf_model does not go with actor_rollout_ref\.model\.lora_rank above 0, .* leave it out",
    ):
        load(BASIC, ["device=cpu", contents, "actor_rollout_ref.model.lora_rank=8"])
    load(BASIC, ["device=cpu", contents])
