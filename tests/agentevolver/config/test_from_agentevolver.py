"""docs/from_agentevolver.md names keys that the configuration knows, and an old block of attribution is taken."""

import re
from pathlib import Path

from omegaconf import OmegaConf

from advantage_processor.adca import AdcaConfig
from advantage_processor.pipeline import adca_config
from agentevolver.config.checks import load
from agentevolver.config.load import compose_defaults
from agentevolver.config.trees import paths
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


def test_keys_that_mean_the_same_are_known():
    known = set(paths(OmegaConf.to_container(compose_defaults("cuda"), resolve=False)))
    keys = list(same())
    assert keys and not [key for key in keys if key not in known]


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
