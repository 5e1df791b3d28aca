"""Exported folders: what transformers loads says the same log-probs as the checkpoint, the card says what happened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver import cli
from agentevolver.evaluation.export.push import push
from agentevolver.trainer.checkpoints import MODEL, seal, shard
from agentevolver.utils.files import write_jsonl
from tests.agentevolver.evaluation.export.checkpoints import log_probs, save, tiny_model
from tests.tiny_model import tiny_model_path


def refused(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert cli.main(["export", *arguments]) == code
    printed = capfd.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("agentevolver export: error: ") and printed.out == ""
    return line


def experiment(folder: Path) -> Path:
    """A run's folder with one checkpoint of step 4, whose policy was saved by two ranks."""
    save(folder / "checkpoints" / "global_step_4", tiny_model(), ranks=2)
    seal(folder / "checkpoints" / "global_step_4")
    (folder / "launches").mkdir()
    argv = ["--conf", "examples/basic.yaml", "trainer.total_training_steps=4", "llm.api_key=sk-abcdefgh1234"]
    (folder / "launches" / "a.json").write_text(json.dumps({"argv": argv, "code": {"commit": "c0ffee"}}))
    config = {
        "device_name": "cpu",
        "data": {"train_split": "train"},
        "env_service": {"env_type": "pocket"},
        "actor_rollout_ref": {"model": {"path": "Qwen/Qwen2.5-0.5B"}, "rollout": {"n": 16}},
        "my": {"api_key": "sk-abcdefgh1234"},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    metrics = [
        {"step": step, "val-core/pocket/reward/mean@2": value, "val-core/pocket/reward/best@2/mean": value}
        for step, value in ((0, 0.25), (4, 0.75), (8, 1.0))
    ]
    write_jsonl(folder / "metrics.jsonl", metrics)
    for step, scores in ((0, (0.0, 0.5)), (4, (0.5, 1.0))):
        write_jsonl(folder / "validation" / f"step_{step}.jsonl", [
            {"task": {"task_id": str(i), "env_type": "pocket", "metadata": {"split": "dev"}}, "outcome": {"score": s}}
            for i, score in enumerate(scores) for s in (score, score)
        ])  # fmt: skip
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformers_loads_what_the_ranks_saved(tmp_path: Path, ranks: int, dtype: torch.dtype) -> None:
    model = tiny_model(dtype=dtype)
    save(tmp_path / "global_step_1", model, ranks=ranks)
    assert cli.main(["export", str(tmp_path / "global_step_1"), "--to", str(tmp_path / "out")]) == 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert loaded.dtype == dtype and torch.equal(log_probs(loaded), log_probs(model))
    AutoTokenizer.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("kind", ["shards", "adapters", "same", "half"])
@pytest.mark.parametrize(
    "own", [{"eos_token_id": [2, 0]}, {"eos_token_id": [2, 0], "temperature": 0.5, "do_sample": False, "ours": 1}]
)
def test_the_model_s_own_generation_config_is_exported(tmp_path: Path, kind: str, own: dict[str, Any]) -> None:
    place = tmp_path / "hf"
    if kind in ("shards", "adapters"):
        place = save(tmp_path / "global_step_1", tiny_model(adapters=kind == "adapters"), adapters=kind == "adapters")
    else:
        tiny_model().save_pretrained(place)
        for path in tiny_model_path().glob("*token*"):
            shutil.copyfile(path, place / path.name)
    files = place if place.name == "hf" else place / "actor" / "huggingface"
    (files / "generation_config.json").write_text(json.dumps(own))
    half = ("--dtype", "bfloat16") if kind == "half" else ()
    assert cli.main(["export", str(place), "--to", str(tmp_path / "out"), *half]) == 0
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == own


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Headless:
        """The model without its head, which is not the embedding's own tensor."""

        config = tiny_model().config

        def state_dict(self) -> dict[str, torch.Tensor]:
            return {name: value for name, value in tiny_model().state_dict().items() if name != "lm_head.weight"}

    save(tmp_path / "global_step_1", Headless())
    line = refused(capfd, str(tmp_path / "global_step_1"), "--to", str(tmp_path / "out"), code=1)
    assert "missing lm_head.weight" in line and not (tmp_path / "out").exists()


def test_a_folder_of_weights_is_copied_or_rounded(tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path / "hf")
    for name, dtype in (("same", ()), ("half", ("--dtype", "bfloat16"))):
        assert cli.main(["export", str(tmp_path / "hf"), "--to", str(tmp_path / name), *dtype]) == 0
    same, half = (AutoModelForCausalLM.from_pretrained(tmp_path / name).eval() for name in ("same", "half"))
    assert torch.equal(log_probs(same), log_probs(model)) and half.dtype == torch.bfloat16
    torch.testing.assert_close(log_probs(half), log_probs(model), atol=0.1, rtol=0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_are_merged(tmp_path: Path, ranks: int) -> None:
    policy = tiny_model(adapters=True)
    save(tmp_path / "global_step_1", policy, ranks=ranks, adapters=True)
    assert cli.main(["export", str(tmp_path / "global_step_1"), "--to", str(tmp_path / "out")]) == 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(log_probs(loaded), log_probs(policy), atol=1e-5, rtol=1e-5)
    with policy.disable_adapter():
        assert (log_probs(loaded) - log_probs(policy)).abs().max() > 0.01


def test_adapters_are_kept_beside_the_model_they_belong_to(tmp_path: Path) -> None:
    from peft import PeftModel

    policy, folder = tiny_model(adapters=True), tmp_path / "pocket" / "lora"
    tiny_model().save_pretrained(tmp_path / "base")
    save(folder / "checkpoints" / "global_step_1", policy, adapters=True, only=True)
    (folder / "config.yaml").write_text(json.dumps({"actor_rollout_ref": {"model": {"path": str(tmp_path / "base")}}}))
    checkpoint = str(folder / "checkpoints" / "global_step_1")
    assert cli.main(["export", checkpoint, "--to", str(tmp_path / "out"), "--adapters", "keep"]) == 0
    assert not (tmp_path / "out" / "model.safetensors").exists()
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "out").eval()
    torch.testing.assert_close(log_probs(loaded), log_probs(policy), atol=1e-5, rtol=1e-5)
    # Adapters alone are merged into the model that the run's configuration names.
    assert cli.main(["export", checkpoint, "--to", str(tmp_path / "merged")]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(log_probs(merged), log_probs(policy), atol=1e-5, rtol=1e-5)


def test_the_card_says_what_happened_up_to_the_checkpoint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = experiment(tmp_path / "pocket" / "run")
    assert cli.main(["export", str(folder), "--to", str(tmp_path / "out")]) == 0
    assert capfd.readouterr().out.startswith("pocket/run step 4: ")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "\nbase_model: Qwen/Qwen2.5-0.5B\n" in card and "# pocket/run step 4\n" in card
    assert "| pocket | 2 | 0.250 [0.000, 1.000] (0) | 0.750 [0.000, 1.000] (4) | +0.500 ± 0.000 |" in card
    assert "actor_rollout_ref.rollout.n: 16" in card and "| environment | pocket |" in card
    assert "agentevolver run --conf examples/basic.yaml trainer.total_training_steps=4" in card and "c0ffee" in card
    everything = card + (tmp_path / "out" / "agentevolver.yaml").read_text()
    assert "sk-abcdefgh1234" not in everything and "***" in everything


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, "")
    folder, out = experiment(tmp_path / "pocket" / "run"), str(tmp_path / "out")
    assert "whole checkpoints of the steps 4" in refused(capfd, str(folder), "--to", out, "--step", "3")
    assert "was trained without adapters" in refused(capfd, str(folder), "--to", out, "--adapters", "keep")
    assert "holds no weights" in refused(capfd, str(folder / "validation"), "--to", out)
    assert "set HF_TOKEN" in refused(capfd, str(folder), "--to", out, "--push", "me/policy")
    lost = folder / "checkpoints" / "global_step_4"
    (link := lost / "actor" / "huggingface" / "notes").symlink_to(__file__)
    assert f"{link} is a link out of its folder" in refused(capfd, str(lost), "--to", out, code=1)
    torch.save({"w": pytest.exit}, shard(lost / "actor", MODEL, 2, 1))
    assert "cannot be joined" in refused(capfd, str(lost), "--to", out, code=1)
    shutil.rmtree(lost)
    assert "no whole checkpoint" in refused(capfd, str(folder), "--to", out, code=1)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


class Hub:
    """The hub's client: keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def create_repo(self, repo: str, **given: Any) -> None:
        self.calls.append((repo, given))

    def upload_folder(self, *, repo_id: str, **given: Any) -> None:
        self.calls.append((repo_id, given))


def test_push_makes_a_private_repository_and_uploads_the_folder(tmp_path: Path) -> None:
    hub = Hub()
    assert push(tmp_path, "me/policy", "hf_x", public=False, api=hub) == "https://huggingface.co/me/policy"
    (made, how), (uploaded, what) = hub.calls
    assert made == uploaded == "me/policy" and how == {"private": True, "exist_ok": True, "repo_type": "model"}
    assert what["folder_path"] == str(tmp_path) and what["repo_type"] == "model"
