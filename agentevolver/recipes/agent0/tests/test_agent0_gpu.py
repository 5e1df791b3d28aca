"""agent0_gpu.yaml: the release's numbers, seven GPUs that train and one that plays, and verl accepts both
trainings."""

from pathlib import Path

import pytest

from agentevolver.config import devices
from agentevolver.config.checks import Resolved, for_verl, load
from agentevolver.config.load import resolved_tree
from agentevolver.config.model import DecoderSize
from agentevolver.config.overlay import laid_over
from agentevolver.launcher import cli
from agentevolver.launcher.memory import GIB, UTILISATION, demand
from agentevolver.recipes.agent0.overlays import proposer_overlay, solver_overlay
from agentevolver.recipes.agent0.settings import settings_of
from agentevolver.utils.errors import ConfigError

AGENT0 = Path(__file__).parents[1] / "examples" / "agent0_gpu.yaml"


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> Resolved:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 8)
    return load(AGENT0)


def test_the_numbers_are_those_of_the_release(resolved: Resolved) -> None:
    sizes, section = resolved.settings.sizes, settings_of(resolved.settings)
    actor = resolved.config.actor_rollout_ref.actor
    assert str(resolved.config.actor_rollout_ref.model.path) == "Qwen/Qwen3-4B-Base" and resolved.device == "cuda"
    assert (actor.optim.lr, actor.kl_loss_coef, actor.kl_loss_type) == (1e-6, 0.01, "low_var_kl")
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.optim.weight_decay) == (0.2, 0.2, 0.01)
    assert (sizes.n, sizes.max_prompt_length, sizes.max_response_length, sizes.response_length) == (
        16,
        1024,
        4096,
        2048,
    )
    assert sizes.train_batch_size // sizes.ppo_mini_batch_size >= 2, "else ADPO's clip is inert"
    assert (resolved.settings.rollout.max_env_len, resolved.settings.rollout.max_steps) == (512, 5)
    assert (section.proposer.steps, section.proposer.n, section.executor.label_k, section.keep) == (
        6,
        4,
        10,
        (0.3, 0.8),
    )
    assert (section.adpo.s_min, section.adpo.bonus, section.rounds) == (0.6, 0.1, 3)
    assert sizes.n_gpus_per_node + section.executor.gpus == 8


@pytest.mark.thorough
@pytest.mark.parametrize("training", ["proposer", "solver"])
def test_verl_accepts_both_trainings(training: str, resolved: Resolved) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    tree, settings, folder = resolved_tree(resolved.config), resolved.settings, Path("/x/round_1") / training
    if training == "proposer":
        overlay = proposer_overlay(tree, settings, folder, tasks=3066, start="/w", executor="/e")
    else:
        overlay = solver_overlay(tree, settings, folder, tasks=2000, start="/w")
    config = for_verl(laid_over(tree, overlay))
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    clip = config.actor_rollout_ref.actor.clip_ratio_high
    assert clip == (0.3 if training == "proposer" else 0.2)


@pytest.mark.thorough
def test_a_dry_run_on_cuda_says_who_has_which_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    assert (
        cli.main(
            ["--conf", str(AGENT0), "--show-config", f"experiment.root={tmp_path}", "ray.dashboard=false"], tmp_path
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "the GPU group" in printed and "7 device(s) a node" in printed and "--num-gpus=7" in printed
    assert (
        "agentevolver.trainer.job.frozen --config" in printed and "-m agentevolver.recipes.agent0 --config" in printed
    )


def test_one_gpu_holds_the_small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 1)
    small = DecoderSize(hidden=128, intermediate=384, layers=4, heads=4, kv_heads=2, vocabulary=512, tied=True)
    own = ["device=cuda", "recipes.agent0.executor.gpus=0", f"{UTILISATION}=0.3"]
    resolved = load(AGENT0.with_name("agent0.yaml"), own)
    need = demand(resolved.config, small)
    assert resolved.settings.sizes.n_gpus_per_node == 1
    assert need.beside == need.share == 0.3 and need.problem(80 * GIB) is None and need.warning(80 * GIB) is None
    greedy = demand(load(AGENT0.with_name("agent0.yaml"), [*own, f"{UTILISATION}=0.5"]).config, small)
    assert "is taken twice" in str(greedy.problem(80 * GIB))


def test_two_gpus_too_few_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="= 2016 must be a multiple of the 5 GPUs"):
        load(AGENT0, ["trainer.n_gpus_per_node=5"])
