"""docs/from_agentevolver.md says what the configuration really does with AgentEvolver's keys."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.config.checks import load
from agentevolver.config.load import compose_defaults, refuse_unknown
from agentevolver.config.trees import paths
from agentevolver.utils.errors import ConfigError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "from_agentevolver.md").read_text(encoding="utf-8")


def part(title):
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title):
    """The cells of a table's rows, without its head."""
    lines = [line for line in part(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell):
    """The keys of a cell; one that begins with a dot stands in the section of the one before it."""
    found = []
    for name in re.findall(r"`([\w.]+)`", cell):
        found.append(name if not name.startswith(".") else found[-1].rpartition(".")[0] + name)
    return found


def same():
    for line in re.sub(r"\n  ", " ", part("Keys that mean the same")).splitlines():
        if line.startswith("* "):
            prefix, *keys = re.findall(r"`([\w.]+)`", line)
            yield from (prefix + key for key in keys)


@pytest.fixture(scope="module")
def config():
    return compose_defaults("cuda")


@pytest.fixture(scope="module")
def known(config):
    return set(paths(OmegaConf.to_container(config, resolve=False)))


def test_keys_that_mean_the_same_are_known(known):
    keys = list(same())
    assert keys and not [key for key in keys if key not in known]


def test_keys_with_another_name_are_refused_and_their_new_names_are_known(config, known):
    table = rows("Keys with another name")
    for old, new, _ in table:
        for key in names(old):
            with pytest.raises(ConfigError, match=f"unknown key `({key}|{key.partition('.')[0]})`"):
                refuse_unknown({key.partition(".")[0]: _tree(key.partition(".")[2])}, config, "x")
        assert names(new) and not [key for key in names(new) if key not in known], new


@pytest.mark.thorough
def test_keys_that_are_said_to_be_refused_are(config, known):
    table = rows("Keys that are refused")
    refused = [key for old, _ in table for key in names(old)]
    for key in refused:
        root, _, rest = key.partition(".")
        with pytest.raises(ConfigError, match=f"unknown key `{key}`|`{key}` is no key|{key} is set by the run"):
            if key in known:  # verl's: only the whole says no
                load(None, ["device=cpu", f"{key}=1"])
            refuse_unknown({root: _tree(rest)}, config, "x")


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
    assert load(tmp_path / "old.yaml", ["device=cpu"]).settings.attribution.enable


def _tree(rest):
    head, _, more = rest.partition(".")
    return {head: _tree(more)} if more else {head: 1}
