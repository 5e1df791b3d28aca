"""docs/from_agentevolver.md names keys that the configuration knows, and an old block of attribution is taken."""

import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from advantage_processor.adca import AdcaConfig
from advantage_processor.pipeline import adca_config
from agentevolver.config.checks import load
from agentevolver.config.load import compose_defaults, nearest, unknown_keys
from agentevolver.config.trees import nested, paths
from agentevolver.utils.errors import ConfigError
from tests.constants import ENDPOINT

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "from_agentevolver.md").read_text(encoding="utf-8")


def part(title):
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def same():
    for line in re.sub(r"\n  ", " ", part("Keys that mean the same")).splitlines():
        if line.startswith("* "):
            prefix, *keys = re.findall(r"`([\w.]+)`", line)
            yield from (prefix + key for key in keys)


@pytest.fixture(scope="module")
def cuda():
    return compose_defaults("cuda")


@pytest.fixture(scope="module")
def known(cuda):
    return list(paths(OmegaConf.to_container(cuda, resolve=False)))


def rows(title):
    """The keys of the first two columns of a table, the first may hold several."""
    for line in part(title).splitlines():
        if line.startswith("| `"):
            old, new = line.split("|")[1:3]
            yield from ((key, (re.findall(r"`([\w.]+)`", new) or [""])[0]) for key in re.findall(r"`([\w.]+)`", old))


def test_keys_that_mean_the_same_are_known(known):
    keys = list(same())
    assert keys and not [key for key in keys if key not in known]


def test_every_other_key_is_told_by_name_with_its_new_one_or_a_reason(cuda, known):
    renamed, refused = list(rows("Keys with another name")), list(rows("Keys that are refused"))
    assert len(renamed) > 10 and len(refused) > 10
    for old, new in [*renamed, *refused]:
        if old in known:  # `load` refuses it
            continue
        told = unknown_keys(nested(old, 1), cuda, "mine.yaml")[old]
        assert "did you mean" not in told
        assert new in told if (old, new) in renamed else told.endswith("; remove it") or "write `" in told
    assert {new for _, new in renamed} <= set(known)


ORIGINAL = """
hydra: {searchpath: ["file://config"]}
defaults: [ppo_trainer, agentevolver, _self_]
data: {val_type: val, filter_overlong_prompts: true, return_raw_chat: true, train_files: null, max_prompt_length: nine}
actor_rollout_ref:
  rollout: {enable_request_id: false, multi_turn: {enable: true, max_sample_per_task: 4}, custom_dataflow_cls: {a: 1}}
  actor: {off_cliprange_high: 0.6}
critic: {forward_max_token_len_per_gpu: 9}
env_service: {env_type: pocket, env_feedin_preference: code}
thread_pool: {max_workers: 8}
task_manager: {num_explore_threads: "${thread_pool.max_workers}", bs: 9, n: -1, llm_client: q, mine: 1}
exp_manager: {rollout_ratio: 7}
"""


def test_all_problems_are_told_in_one_launch(tmp_path):
    (tmp_path / "old.yaml").write_text(ORIGINAL)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "old.yaml", ["device=cpu", "trainer.exprimnt_name=x", *ENDPOINT])
    said = str(caught.value)
    for key in (
        *("hydra", "defaults", "data.val_type", "filter_overlong_prompts", "data.max_prompt_length", "task_manager.n:"),
        *("rollout.enable_request_id", "multi_turn.enable", "multi_turn.max_sample_per_task", "custom_dataflow_cls"),
        *(
            "off_cliprange_high",
            "critic.forward_max",
            "env_feedin_preference",
            "thread_pool.max_workers",
            ".llm_client",
        ),
        *("task_manager.num_explore_threads", "task_manager.bs", "unknown key `task_manager.mine`", "rollout_ratio"),
        "did you mean `trainer.experiment_name`?",
    ):
        assert key in said, key
    assert said.count("did you mean") == said.count("no key of that name") == 1 and "\n" not in said


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("trainer.total_epoch", "trainer.total_epochs"),
        ("trainer.projekt_name", "trainer.project_name"),
        ("actor_rollout_ref.rollout.temprature", "actor_rollout_ref.rollout.temperature"),
        ("actor_rollout_ref.rolout.n", "actor_rollout_ref.rollout.n"),
        ("task_manager.mixure.shuffle", "task_manager.mixture.shuffle"),
        ("rollout.context_template", "actor_rollout_ref.rollout.context_template"),
        ("env_service.env_typ", None),
        ("task_manager.min_steps", None),
        ("task_manager.llm", None),
        ("exp_manager.val_sample_mode", None),
        ("actor_rollout_ref.actor.off_cliprange_high", None),
        ("trainer.val_freq", None),
    ],
)
def test_a_key_is_suggested_for_a_typing_error_alone(typed, meant, known):
    assert nearest(typed, known) == (f", did you mean `{meant}`?" if meant else ", no key of that name is read")


@pytest.mark.thorough
@settings(deadline=None)
@given(data=st.data())
def test_a_key_with_another_word_of_the_configuration_is_never_taken_for_it(data, known):
    words = sorted({word for name in known for word in re.split(r"[._]", name)})
    name, other = data.draw(st.sampled_from(known)), data.draw(st.sampled_from(words))
    parts = re.split(r"([._])", name)
    place = data.draw(st.integers(0, len(parts) // 2)) * 2
    assume(parts[place].rstrip("s") != other.rstrip("s"))
    parts[place] = other
    assert name not in nearest("".join(parts), known).split("`")


OLD_ATTRIBUTION = """
env_service: {env_type: pocket}
attribution_driven_credit_assignment:
  {enable: true, evaluation_type: api, consistent_scale: 1.0, pos_unconsistent_scale: 0.2, neg_unconsistent_scale: -0.2,
  concurrent: 5, model: qwen-max, api_max_retries: 200, llm_evaluation_log_dir: null, adca_grpo: {prm_scheme: decouple,
  do_batch_norm: true, equal_trajectory_weight: true, fix_base: 0.2, alpha: 0.1, alpha_min: 0.0, prm_steps: 100,
  alpha_cosine_decay_enable: false, total_steps: 100, orm_distribution: last_step, enable_length_normalization: false,
  skip_type: none, enable_adca_metric: false}}
"""


def test_an_old_attribution_block_is_taken_as_it_is(tmp_path):
    (tmp_path / "old.yaml").write_text(OLD_ATTRIBUTION)
    section = load(tmp_path / "old.yaml", ["device=cpu", *ENDPOINT]).settings.attribution
    assert section.enable and adca_config(section) == AdcaConfig(neg_unconsistent_scale=-0.2)
