"""What rounds of proposer and executor refuse before anything is started, and what they warn of."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from agentevolver.config import devices
from agentevolver.config.checks import Resolved, load
from agentevolver.config.load import resolved_tree
from agentevolver.recipes.agent0.checks import warnings
from agentevolver.recipes.agent0.overlays import check_trainings
from agentevolver.recipes.agent0.settings import settings_of
from agentevolver.utils.errors import ConfigError
from tests.tiny_model import build

ROUNDS = ("device=cpu", "recipes.agent0.enable=true", "env_service.env_type=calc")
ELSEWHERE = "llm.base_url=http://x llm.api_key_env=null"


def rounds(*overrides: str) -> Resolved:
    return load(None, [*ROUNDS, *overrides])


def test_rounds_alone_are_accepted_and_ask_nobody() -> None:
    settings = rounds().settings
    assert settings_of(settings).enable and settings.roles == ()


@pytest.mark.thorough
def test_a_proposer_of_another_architecture_is_refused_before_a_training(tmp_path: Path) -> None:
    executor, other = build(tmp_path / "executor"), build(tmp_path / "other", num_hidden_layers=3)
    for proposer, said in (
        (executor, ""),
        (other, "of another architecture"),
        (tmp_path / "none", "no model's config.json"),
    ):
        made = rounds(f"actor_rollout_ref.model.path={executor}", f"recipes.agent0.proposer.path={proposer}")
        with pytest.raises(ConfigError, match=f"recipes.agent0.proposer.path = .*{said}") if said else nullcontext():
            check_trainings(resolved_tree(made.config), made.settings)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            "env_service.env_type.calc=1 env_service.env_type.pocket=1",
            "names calc, pocket, .* one world: name one of calc, python",
        ),
        ("env_service.env_type=propose", "name the world that proposals are for"),
        ("env_service.env_type=pocket", "runs no reference program, which recipes.agent0.gate = executed needs"),
        ("env_service.env_type=pocket recipes.agent0.gate=vote", "pocket takes no proposed problems"),
        (
            f"task_manager.mixture.synthetic_data_ratio=1 task_manager.n=1 {ELSEWHERE}",
            "in rounds all tasks come from proposals",
        ),
        (
            f"exp_manager.reme.enable_summarizer=true exp_manager.reme.updated_freq=2 {ELSEWHERE}",
            "measured without guidance",
        ),
        ("trainer.val_only=true", "recipes.agent0.enable=false"),
        ("trainer.save_freq=-1", "needs a checkpoint"),
        ("actor_rollout_ref.model.lora_rank=8", "whole weights"),
        ("actor_rollout_ref.rollout.agent_function=tests.x:y", "agent of your own"),
        ("recipes.agent0.proposer.levels=[3]", "is fixed at None; remove it"),
        ("recipes.agent0.min_pool=4", "less than data.train_batch_size = 8"),
        ("recipes.agent0.draws=100", "100 proposals cannot give recipes.agent0.pool = 200"),
        ("trainer.total_training_steps=5", "recipes.agent0.executor.steps"),
        ("trainer.test_freq=5", "recipes.agent0.executor.eval_n"),
        ("data.train_filter.n=5", "tasks are proposed"),
        ("actor_rollout_ref.rollout.val_kwargs.n=2", "write recipes.agent0.executor.eval_n"),
        ("recipes.agent0.proposer.by=role", "unknown key `recipes.agent0.proposer.by`"),
        ("recipes.agent0.gate=judge", "recipes.agent0.gate: input should be 'executed' or 'vote', found 'judge'"),
        (
            "recipes.agent0.adpo.enable=false recipes.agent0.adpo.bonus=1",
            "`recipes.agent0.adpo.bonus` has no effect while",
        ),
        ("recipes.agent0.pool=30 recipes.agent0.min_pool=40", "min_pool = 40 is more than pool = 30"),
        ("recipes.agent0.keep=[0.8,0.3]", "the smaller one first"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(overrides: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        rounds(*overrides.split())
    assert "\n" not in str(refused.value)


def test_a_cold_start_is_a_run_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"cold_start\.files: a round begins with the weights of the previous"):
        rounds(f"cold_start.files=[{log}]")


def test_without_rounds_none_of_it_matters() -> None:
    assert (
        load(None, ["device=cpu", "recipes.agent0.min_pool=1", "trainer.total_training_steps=5"]).settings.roles == ()
    )


def warned(*overrides: str) -> list[str]:
    made = rounds(*overrides)
    return warnings(made.settings, made.config)


def test_the_vote_and_an_inert_clip_are_warned_of() -> None:
    one_step = "actor_rollout_ref.actor.ppo_mini_batch_size=8"
    assert warned() == warned(one_step, "actor_rollout_ref.actor.ppo_epochs=2") == []
    (vote,) = warned("recipes.agent0.gate=vote")
    assert ".50, .68, .56, .52, .34" in vote
    (inert,) = warned(one_step)
    assert inert.startswith(
        "recipes.agent0.adpo.bonus widens the upper clip: with one optimiser step a batch every ratio"
    )
    without = load(None, ["device=cpu", "recipes.agent0.gate=vote"])
    assert warnings(without.settings, without.config) == []


@pytest.mark.parametrize(
    ("visible", "frozen", "training", "split"),
    [
        ("0,1,2,3", 1, 3, ("0,1,2", "3")),
        ("4,5,6,7", 2, 2, ("4,5", "6,7")),
        ("GPU-a,GPU-b", 1, 1, ("GPU-a", "GPU-b")),
        ("0,1", 0, 2, None),
        ("0", 1, 1, None),
    ],
)
def test_gpus_are_split_by_name(
    visible: str, frozen: int, training: int, split: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.gpus_of(frozen, training) == split


def test_the_training_takes_what_the_frozen_policies_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 8)
    common = ["device=cuda", "env_service.env_type=calc", "data.train_batch_size=42"]
    common += [
        "actor_rollout_ref.actor.ppo_mini_batch_size=42",
        "recipes.agent0.min_pool=42",
        "recipes.agent0.executor.gpus=2",
    ]
    sizes = [load(None, [*common, f"recipes.agent0.enable={on}"]).settings.sizes for on in ("true", "false")]
    assert [size.n_gpus_per_node for size in sizes] == [6, 8]
