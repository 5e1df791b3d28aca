"""docs/from_agentevolver.md says what the configuration really does with AgentEvolver's keys."""

import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from agentevolver.config.checks import load
from agentevolver.config.load import compose_defaults, refuse_unknown
from agentevolver.config.reference import sections
from agentevolver.config.trees import paths
from agentevolver.launcher.options import parse
from agentevolver.llm.settings import LLMSettings, Role
from agentevolver.utils.errors import ConfigError
from context_manager.settings import OLD_TEMPLATE_NAMES

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


def test_keys_that_are_said_to_be_refused_are(config, known):
    table = rows("Keys that are refused")
    refused = [key for old, _ in table for key in names(old)]
    for key in refused:
        root, _, rest = key.partition(".")
        with pytest.raises(ConfigError, match=f"unknown key `{key}`|`{key}` is no key|{key} is set by the run"):
            if key in known:  # verl's: only the whole says no
                load(None, ["device=cpu", f"{key}=1"])
            refuse_unknown({root: _tree(rest)}, config, "x")


def test_keys_that_are_said_to_differ_or_to_have_no_effect_are_known(known):
    differing = [key for old, *_ in rows("The same name, another behaviour") for key in names(old)]
    unused = [key for key in names(part("Keys that verl has and this path does not use")) if "." in key]
    assert not [key for key in (*differing, *unused) if key not in known]
    assert not set(unused) & {key.path for section in sections() for key in section.keys}


def test_the_defaults_that_are_told_are_the_defaults(config):
    defaults = {key.path: OmegaConf.select(config, key.path) for section in sections() for key in section.keys}
    assert defaults["exp_manager.reme.retrieve_top_k"] is None and config.trainer.save_freq == 10
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen2.5-7B-Instruct" and config.data.val_batch_size is None
    assert load(None, ["device=cpu", "exp_manager.preset=original"]).settings.exp_manager.reme.retrieve_top_k == 3
    assert load(None, ["device=cpu"]).settings.exp_manager.reme.retrieve_top_k == 5
    for old, new in OLD_TEMPLATE_NAMES.items():
        assert f"`{old}`" in PAGE and f"`{new}`" in PAGE


def test_the_section_for_dashscope_is_valid_and_names_models_for_roles():
    (block,) = re.findall(r"```yaml\n(.*?)```", part("Launch"), re.DOTALL)
    llm = LLMSettings.model_validate(yaml.safe_load(block)["llm"])
    assert llm.endpoint(Role.ATTRIBUTOR).model == "qwen-max" and llm.endpoint(Role.EXPLORER).model == "qwen-plus"


def test_an_old_attribution_block_is_taken_as_it_is():
    old = [
        *(
            "enable=true",
            "evaluation_type=api",
            "consistent_scale=1.0",
            "pos_unconsistent_scale=0.2",
            "neg_unconsistent_scale=-0.2",
        ),
        *(
            "concurrent=5",
            "model=qwen-max",
            "api_max_retries=200",
            "llm_evaluation_log_dir=null",
            "adca_grpo.prm_scheme=decouple",
        ),
        *(
            "adca_grpo.do_batch_norm=true",
            "adca_grpo.equal_trajectory_weight=true",
            "adca_grpo.fix_base=0.2",
            "adca_grpo.alpha=0.1",
        ),
        *("adca_grpo.alpha_min=0.0", "adca_grpo.alpha_cosine_decay_enable=false", "adca_grpo.total_steps=100"),
        *(
            "adca_grpo.orm_distribution=last_step",
            "adca_grpo.enable_length_normalization=false",
            "adca_grpo.prm_steps=100",
        ),
        *("adca_grpo.skip_type=none", "adca_grpo.enable_adca_metric=false"),
    ]
    section = "attribution_driven_credit_assignment"
    assert load(
        ROOT / "examples" / "basic.yaml", ["device=cpu", *(f"{section}.{item}" for item in old)]
    ).settings.attribution.enable


def test_the_flags_that_are_named_are_understood():
    assert parse(["--conf", "x.yaml", "--with-appworld", "--with-reme"])


def _tree(rest):
    head, _, more = rest.partition(".")
    return {head: _tree(more)} if more else {head: 1}
