"""LoRA on a CPU, from the benchmark of whole steps to an exported adapter; with it the benchmark itself."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.utils.files import read_jsonl
from tests.e2e.runs import ROOT
from tests.e2e.test_exactness import furthest, samples

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1500)]


class Run:
    """What `furthest` and `samples` read of a run."""

    def __init__(self, directory):
        self.directory = directory


def call(*command):
    done = subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two steps of the benchmark with adapters of rank 8, and a third one by a second launch from the checkpoint of the
    second."""
    folder = tmp_path_factory.mktemp("lora")
    command = [
        "-m",
        "benchmarks.gpu_step",
        "--device=cpu",
        "--shape=seed",
        "--lora-rank=8",
        "--steps=2",
        "--limit-s=900",
    ]
    command += [f"--out={folder / 'out'}", f"--experiments={folder / 'experiments'}", "env_service.env_type=pocket"]
    command += ["trainer.save_freq=2", "trainer.dump_samples=true", "actor_rollout_ref.actor.optim.lr=5e-3"]
    printed = call(*command)
    (directory,) = (folder / "experiments" / "gpu_step").iterdir()
    before = {step: samples(Run(directory), step) for step in (1, 2)}
    call("launcher.py", "--resume", directory, "trainer.total_training_steps=3")
    return folder, directory, printed, before


def test_adapters_learn_and_what_is_rolled_out_has_them(measured):
    _, directory, _, before = measured
    base = AutoModelForCausalLM.from_pretrained(seed_policy_path(), dtype=torch.float32).eval()
    assert furthest(base, before[1], "rollout_log_probs") <= 1e-4 and furthest(base, before[1], "old_log_probs") <= 1e-4
    assert furthest(base, before[2], "rollout_log_probs") > 1e-2, "vLLM has the base's weights"
    for rows in (before[2], samples(Run(directory), 3)):
        pairs = [
            abs(a - b)
            for row in rows
            for a, b, m in zip(row["rollout_log_probs"], row["old_log_probs"], row["response_mask"], strict=True)
            if m
        ]
        assert max(pairs) <= 1e-4


def test_a_run_goes_on_from_its_adapters_and_the_exported_ones_are_the_trained_policy(measured, tmp_path):
    from peft import PeftModel

    _, directory, _, _ = measured
    assert [record["step"] for record in read_jsonl(directory / "metrics.jsonl")] == [1, 2, 3]
    actor = directory / "checkpoints" / "global_step_2" / "actor"
    call("-m", "verl.model_merger", "merge", "--backend=fsdp", f"--local_dir={actor}", f"--target_dir={tmp_path}")
    rows = samples(Run(directory), 3)
    base = AutoModelForCausalLM.from_pretrained(seed_policy_path(), dtype=torch.float32).eval()
    assert furthest(base, rows, "old_log_probs") > 1e-2
    policy = PeftModel.from_pretrained(base, tmp_path / "lora_adapter").merge_and_unload().eval()
    assert furthest(policy, rows, "old_log_probs") <= 1e-3, (
        "verl exports adapters in bf16, which is all the difference there may be"
    )
    exported = load_file(tmp_path / "lora_adapter" / "adapter_model.safetensors")
    kept = torch.load(actor / "model_world_size_1_rank_0.pt", weights_only=False)
    trained = {
        name.replace(".default.weight", ".weight"): weight.to_local()
        for name, weight in kept.items()
        if "lora_" in name
    }
    assert exported.keys() == trained.keys() and all(
        torch.equal(exported[name], trained[name].bfloat16()) for name in trained
    )
    save_file(trained, tmp_path / "lora_adapter" / "adapter_model.safetensors")
    base = AutoModelForCausalLM.from_pretrained(seed_policy_path(), dtype=torch.float32)
    policy = PeftModel.from_pretrained(base, tmp_path / "lora_adapter").merge_and_unload().eval()
    assert furthest(policy, rows, "old_log_probs") <= 1e-4 and furthest(policy, rows, "rollout_log_probs") <= 1e-4
