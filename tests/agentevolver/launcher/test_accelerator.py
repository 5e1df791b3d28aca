"""What a machine with GPUs is asked before Ray starts, and what is said of one that cannot do it."""

import json

import pytest

from agentevolver.launcher import accelerator
from agentevolver.launcher.accelerator import examine, gpu_memory
from agentevolver.utils.errors import LaunchError
from tests.agentevolver.launcher.test_memory import config
from tests.tiny_model import tiny_model_path

TINY = f"actor_rollout_ref.model.path={tiny_model_path()}"
TWO = """0, GPU-5a1e5c2e-77b7-2b44-f1f3-3a0a1d6b7c11, 81559
1, GPU-0c8f9d10-1234-4e5f-8a9b-ffeeddccbbaa, 40960
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine with two GPUs and a torch that was built for CUDA."""
    monkeypatch.setattr(accelerator.metadata, "version", lambda name: "2.11.0")
    monkeypatch.setattr(gpu_memory, "__defaults__", (lambda: TWO,))


@pytest.mark.parametrize(
    ("devices", "seen"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,7,1", [0]),
        ("GPU-0c8f9d10", [1]),
    ],
)
def test_cuda_visible_devices_chooses_as_cuda_does(devices, seen):
    environment = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    assert gpu_memory(environment) == [(81559 << 20, 40960 << 20)[index] for index in seen]


@pytest.mark.parametrize(
    ("overrides", "gpus", "devices", "says"),
    [
        ((), 1, "", "no GPU is visible (CUDA_VISIBLE_DEVICES leaves none)"),
        ((), 8, "0,1", "trainer.n_gpus_per_node=8, but 2 are visible: set trainer.n_gpus_per_node=2"),
    ],
)
def test_what_does_not_fit_on_this_machine_is_refused(overrides, gpus, devices, says):
    with pytest.raises(LaunchError) as caught:
        examine(config(TINY, *overrides, gpus=gpus), {"CUDA_VISIBLE_DEVICES": devices})
    assert says in str(caught.value)
    examine(config(TINY, "ray.address=gpu7:6379", gpus=gpus), {"CUDA_VISIBLE_DEVICES": devices})


def test_no_driver_and_a_torch_for_the_cpu_are_refused(monkeypatch):
    monkeypatch.setattr(accelerator.metadata, "version", lambda name: "2.11.0+cpu")
    with pytest.raises(LaunchError, match=r"torch was built without CUDA: run `bash install\.sh --cuda`"):
        examine(config(TINY), {})
    monkeypatch.setattr(gpu_memory, "__defaults__", (lambda: None,))
    with pytest.raises(LaunchError, match=r"no GPU is visible \(nvidia-smi does not answer\)"):
        examine(config(TINY), {})


def test_the_smallest_gpu_counts_and_a_policy_that_is_too_large_is_refused(tmp_path):
    assert "GiB of 40.0 while the policy learns" in examine(config(TINY, gpus=2), {})[0]
    large = {"hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672, "num_attention_heads": 64}
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 128_256, **large}))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(LaunchError, match="the policy's states need"):
        examine(config(f"actor_rollout_ref.model.path={tmp_path}"), {})
