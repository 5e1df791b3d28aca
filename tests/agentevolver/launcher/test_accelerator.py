"""What a machine with GPUs is asked before Ray starts, and what is said of one that cannot do it."""

import json
import re
from pathlib import Path

import pytest

from agentevolver.errors import LaunchError, UsageError
from agentevolver.launcher import accelerator
from agentevolver.launcher.accelerator import (
    Driver,
    attention_problem,
    check_accelerator,
    check_files,
    examine,
    folder_of,
    missing_in,
)
from agentevolver.recipes.offline.seed import seed_policy_path
from tests.agentevolver.launcher.test_gpus import TABLE, TWO
from tests.agentevolver.launcher.test_memory import config

SEED = f"actor_rollout_ref.model.path={seed_policy_path()}"
SDPA = "actor_rollout_ref.model.override_config.attn_implementation=sdpa"
NAME = "actor_rollout_ref.model.override_config.attn_implementation"


def node(command):
    """A machine with two H100."""
    return TWO if len(command) > 1 else TABLE


def nothing(command):
    return None


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """No driver of this machine's own, an empty cache of the hub, and a torch that was built for CUDA 13."""
    monkeypatch.setattr("agentevolver.launcher.accelerator.PROC_VERSION", tmp_path / "none")
    monkeypatch.setattr(accelerator, "torch_cuda", lambda: "13.0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def texts(report):
    return [str(problem) for problem in report.problems]


def test_a_machine_that_can_do_it_is_told_what_it_will_need():
    report = examine(config(SEED, SDPA, gpus=2), {}, run=node)
    assert texts(report) == []
    assert len(report.lines) == 2 and "of 79.6 while the policy learns" in report.lines[0].replace(" GiB", "")


@pytest.mark.parametrize(
    ("gpus", "environment", "run", "says"),
    [
        (1, {}, nothing, "no GPU is seen (nvidia-smi does not answer)"),
        (1, {"CUDA_VISIBLE_DEVICES": ""}, node, "no GPU is seen (CUDA_VISIBLE_DEVICES leaves none)"),
        (8, {}, node, "trainer.n_gpus_per_node=8, and 2 can be seen: set trainer.n_gpus_per_node=2"),
    ],
)
def test_gpus_that_are_not_there_are_missed(gpus, environment, run, says):
    (problem,) = texts(examine(config(SEED, SDPA, gpus=gpus), environment, run=run))
    assert says in problem


@pytest.mark.parametrize(
    ("query", "environment"),
    [
        ("0, GPU-5a1e5c2e, NVIDIA GB10, [N/A], [N/A]\n", {}),
        (TWO, {"CUDA_VISIBLE_DEVICES": "MIG-7c4e0b5e-2c1b-5d0c-9a53-9bd4a2c9bb0f"}),
    ],
)
def test_gpus_that_cannot_be_judged_are_not_missed(query, environment):
    report = examine(config(SEED, SDPA), environment, run=lambda command: query if len(command) > 1 else TABLE)
    assert texts(report) == [] and " of " not in report.lines[0].split("(an estimate)")[1]


ROUNDS = ("coevolve.enable=true", "coevolve.executor.gpus=1")


def test_frozen_policies_want_gpus_of_their_own():
    (problem,) = texts(examine(config(SEED, SDPA, *ROUNDS, gpus=2), {}, run=node))
    assert problem.startswith(
        "trainer.n_gpus_per_node=2 and coevolve.executor.gpus=1 for the frozen policies are 3 GPUs"
    )
    assert problem.endswith("and 2 can be seen: set trainer.n_gpus_per_node=1")
    (problem,) = texts(examine(config(SEED, SDPA, *ROUNDS), {"CUDA_VISIBLE_DEVICES": "0"}, run=node))
    assert problem.endswith("and 1 can be seen: set coevolve.executor.gpus=0, and all is on one")
    report = examine(config(SEED, SDPA, *ROUNDS), {}, run=node)
    assert texts(report) == [] and "frozen policies: as much as vLLM, on 1 GPU(s) of their own" in report.lines[2]


def test_a_gpu_that_is_shared_with_frozen_policies_is_counted_twice():
    shared = ("coevolve.enable=true", "coevolve.executor.gpus=0")
    usage = "actor_rollout_ref.rollout.gpu_memory_utilization"
    assert texts(examine(config(SEED, SDPA, *shared, f"{usage}=0.3"), {}, run=node)) == []
    (problem,) = texts(examine(config(SEED, SDPA, *shared, f"{usage}=0.6"), {}, run=node))
    assert "gpu_memory_utilization=0.6 is taken twice" in problem and "or give them a GPU of their own" in problem


def test_a_driver_without_nvidia_smi_is_enough(monkeypatch):
    monkeypatch.setattr(accelerator, "driver", lambda run: Driver("580.82.07", None))
    report = examine(config(SEED, SDPA), {}, run=nothing)
    assert texts(report) == [] and " of " not in report.lines[0].split("(an estimate)")[1]


def test_a_driver_too_old_and_a_torch_for_the_cpu_are_refused(monkeypatch):
    monkeypatch.setattr(accelerator, "driver", lambda run: Driver("570.86.15", "12.8"))
    (problem,) = texts(examine(config(SEED, SDPA), {}, run=node))
    assert "driver 570.86.15 (up to CUDA 12.8) is too old" in problem
    monkeypatch.setattr(accelerator, "torch_cuda", lambda: None)
    (problem,) = texts(examine(config(SEED, SDPA), {}, run=node))
    assert "torch is built without CUDA" in problem and "install.sh --cuda" in problem


def test_a_cluster_elsewhere_is_not_judged_by_this_machine():
    assert texts(examine(config(SEED, SDPA, "ray.address=gpu7:6379"), {}, run=nothing)) == []


def test_memory_that_cannot_do_is_refused(tmp_path):
    large = {
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 128_256, **large}))
    (tmp_path / "model.safetensors").touch()
    problems = texts(examine(config(f"actor_rollout_ref.model.path={tmp_path}", SDPA), {}, run=node))
    assert len(problems) == 1 and "the policy's states need" in problems[0]


@pytest.mark.parametrize(
    ("overrides", "installed", "says"),
    [
        ([SDPA], (), None),
        ([], ("flash_attn",), None),
        ([], (), r"verl's default attention flash_attention_2 needs the package flash_attn, which is not installed"),
        ([f"{NAME}=flash_attention_3"], (), r"=flash_attention_3 needs the package flash_attn_interface"),
        ([f"{NAME}=kernels-community/flash-attn"], (), r"needs the package kernels"),
        (
            [f"{NAME}=fash_attention"],
            (),
            r"is none of transformers' own .*, and no actor_rollout_ref.model.external_lib",
        ),
    ],
)
def test_an_attention_must_be_there(overrides, installed, says, monkeypatch):
    monkeypatch.setattr(accelerator.importlib.util, "find_spec", lambda name: object() if name in installed else None)
    problem = attention_problem(config(*overrides))
    if says is None:
        assert problem is None
    else:
        assert problem is not None and re.search(says, problem), problem


def test_an_attention_of_ones_own_is_looked_for_in_the_module_that_registers_it(tmp_path, monkeypatch):
    package = tmp_path / "mine" / "attention"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "plugin.py").write_text("from . import names\n")
    (package / "names.py").write_text('NAME = "my_attention"\n')
    (package.parent / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    library = "actor_rollout_ref.model.external_lib=mine.attention.plugin"
    assert attention_problem(config(library, f"{NAME}=my_attention")) is None
    assert "does not name it" in attention_problem(config(library, f"{NAME}=your_attention"))


def test_a_folder_must_hold_a_model_with_all_its_shards(tmp_path: Path):
    path = str(tmp_path)
    with pytest.raises(UsageError, match=r"model\.path=.* has no config\.json"):
        check_files(path, {})
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"has no model\.safetensors"):
        check_files(path, {})
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (tmp_path / shards["a"]).touch()
    with pytest.raises(UsageError, match=r"has no model-00002-of-00002\.safetensors"):
        check_files(path, {})
    (tmp_path / shards["b"]).touch()
    check_files(path, {})
    assert missing_in(seed_policy_path()) is None


def test_a_model_in_the_cache_is_found_without_asking(tmp_path, monkeypatch):
    monkeypatch.setattr(accelerator, "_ask_hub", lambda path: pytest.fail("asked"))
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen2.5-7B" / "snapshots" / "abc"
    assert folder_of("Qwen/Qwen2.5-7B") is None
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc\n")
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text((seed_policy_path() / "config.json").read_text())
    assert folder_of("Qwen/Qwen2.5-7B") == snapshot
    check_files("Qwen/Qwen2.5-7B", {"HF_HUB_OFFLINE": "1"})
    assert examine(config("actor_rollout_ref.model.path=Qwen/Qwen2.5-7B", SDPA), {}, run=node).lines


def test_a_model_that_is_nowhere_is_refused_offline_and_asked_for_online(monkeypatch):
    with pytest.raises(
        LaunchError,
        match=r"not whole\) in the Hugging Face cache and HF_HUB_OFFLINE is set: .*hf download Qwen/Qwen2\.5-7B",
    ):
        check_files("Qwen/Qwen2.5-7B", {"HF_HUB_OFFLINE": "1"})
    check_files("Qwen/Qwen2.5-7B", {}, ask_hub=False)
    monkeypatch.setattr(accelerator, "HUB_TIMEOUT_S", 2.0)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}",
    )
    with pytest.raises(LaunchError, match=r"the hub does not answer \(\w+\): fetch it where there is a network"):
        check_files("Qwen/Qwen2.5-7B", {})
    with pytest.raises(UsageError, match=r"has no model of this name"):
        check_files("not a name", {})


def test_a_start_is_refused_by_the_first_problem(monkeypatch):
    monkeypatch.setattr(
        accelerator, "examine", lambda *_: accelerator.Report([LaunchError("one"), LaunchError("two")], ["a line"])
    )
    with pytest.raises(LaunchError, match="one"):
        check_accelerator(config(SEED), {})
    monkeypatch.setattr(accelerator, "examine", lambda *_: accelerator.Report([], ["a line"]))
    assert check_accelerator(config(SEED), {}) == ["a line"]
