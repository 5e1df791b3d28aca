"""verl's side of `benchmarks.peers`: its own trainer and its own ToolAgentLoop, as they come, on a CPU.

`python -m verl.trainer.main_ppo` trains by the V1 synchronous trainer on PocketWorld's training tasks with the calls of
the world as verl's tools (`verl_alone.tools`) and its outcome as a custom reward function. Of this project verl has
what it cannot run on a CPU without: platform, engine, and the weights' way into vLLM. Whatever means the same in both
configurations is taken over from ours (`SAME`); the rest is verl's default, but for attention without flash-attn
(`sdpa`, rows padded).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from omegaconf import OmegaConf

from agentevolver.config.checks import Resolved
from agentevolver.config.trees import leaves
from agentevolver.utils.files import read_jsonl
from benchmarks.server import cpu_s, server
from benchmarks.step_time import MARK, ROOT, WARM_UP, CpuSampler
from env_service.client import EnvClient
from env_service.environments.pocket.env import PocketEnv

PARAMS = {"native_tools": True}
PARTS = "benchmarks.verl_alone"
_AR, _ROLLOUT = "actor_rollout_ref", "actor_rollout_ref.rollout"
SAME = (
    "algorithm.adv_estimator",
    "algorithm.use_kl_in_reward",
    *(f"data.{key}" for key in ("train_batch_size", "max_prompt_length", "max_response_length", "shuffle", "seed")),
    "data.dataloader_num_workers",
    f"{_AR}.model.path",
    f"{_AR}.model.enable_gradient_checkpointing",
    *(f"{_AR}.actor.{key}" for key in ("strategy", "ppo_mini_batch_size", "use_dynamic_bsz", "clip_ratio_high")),
    *(f"{_AR}.actor.{key}" for key in ("ppo_max_token_len_per_gpu", "loss_agg_mode", "use_torch_compile", "optim.lr")),
    *(f"{_AR}.actor.{key}" for key in ("use_kl_loss", "kl_loss_coef", "kl_loss_type", "entropy_coeff")),
    *(
        f"{_AR}.{part}.fsdp_config.{key}"
        for part in ("actor", "ref")
        for key in ("dtype", "mixed_precision", "use_torch_compile", "param_offload")
    ),
    f"{_AR}.ref.log_prob_max_token_len_per_gpu",
    *(f"{_ROLLOUT}.{key}" for key in ("name", "mode", "n", "temperature", "dtype", "load_format", "max_model_len")),
    *(f"{_ROLLOUT}.{key}" for key in ("max_num_seqs", "max_num_batched_tokens", "enforce_eager", "free_cache_engine")),
    *(f"{_ROLLOUT}.{key}" for key in ("enable_sleep_mode", "tensor_model_parallel_size", "agent.num_workers")),
    f"{_ROLLOUT}.enable_chunked_prefill",
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
    *(f"trainer.{key}" for key in ("device", "nnodes", "n_gpus_per_node", "total_epochs")),
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
)
"""Keys of ours that verl's run has the values of."""


@dataclass(frozen=True)
class VerlRun:
    """What a run measured.

    - `records`: of verl's own metrics, a step each, after the warm-up.
    - `episodes`: of the same steps, a list of episodes each, with `replies` and `tokens` sampled.
    - `step_cpu`: CPU seconds of a step, of all processes.
    """

    records: list[dict[str, float]]
    episodes: list[list[dict[str, float]]]
    step_cpu: float


def same_as_ours(ours: Resolved) -> dict[str, Any]:
    """Return what verl is told of our configuration; raises KeyError for a key of `SAME` that ours has not."""
    tree = OmegaConf.to_container(ours.config, resolve=True)
    found: dict[str, Any] = {}
    for key in SAME:
        value: Any = tree
        for name in key.split("."):
            value = value[name]
        found.update(leaves({key: value}))
    return found


def of_verl_alone(ours: Resolved, folder: Path, url: str, steps: int) -> dict[str, Any]:
    """Return verl's settings that ours has otherwise: data, tools, reward, and what an example of verl's sets."""
    turns = int(OmegaConf.select(ours.config, f"{_ROLLOUT}.multi_turn.max_steps")) + 1
    tasks = folder / "train.jsonl"
    with EnvClient(url) as client:
        names = client.get_env_profile("pocket", "train")
        first = client.create_instance("pocket", names[0], params=PARAMS)["info"]
        client.release_instance(first["instance_id"])
    rows = (
        {
            "data_source": "pocket",
            "prompt": PocketEnv(name, "opening", PARAMS).get_init_state()["state"],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": place, "tools_kwargs": {"task_id": name}},
        }
        for place, name in enumerate(names)
    )
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tools, loops = folder / "tools.yaml", folder / "loops.yaml"
    config = {"type": "native", "url": url, "max_turns": turns - 1, "params": PARAMS}
    listed = [
        {"class_name": f"{PARTS}.tools.PocketTool", "config": config, "tool_schema": schema}
        for schema in first["tools"]
    ]
    OmegaConf.save({"tools": listed}, tools)
    OmegaConf.save([{"name": "watched", "_target_": f"{PARTS}.tools.WatchedToolAgentLoop"}], loops)
    return {
        "data.train_files": tasks,
        "data.val_files": tasks,
        f"{_AR}.model.external_lib": f"{PARTS}.engine",
        f"{_AR}.model.override_config.attn_implementation": "sdpa",
        f"{_AR}.model.use_remove_padding": False,
        f"{_ROLLOUT}.engine_kwargs.vllm.worker_extension_cls": f"{PARTS}.vllm_worker.CpuWorkerExtension",
        f"{_ROLLOUT}.multi_turn.enable": True,
        f"{_ROLLOUT}.multi_turn.format": "hermes",
        f"{_ROLLOUT}.multi_turn.tool_config_path": tools,
        f"{_ROLLOUT}.multi_turn.max_assistant_turns": turns,
        f"{_ROLLOUT}.agent.default_agent_loop": "watched",
        f"{_ROLLOUT}.agent.agent_loop_config_path": loops,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": f"pkg://{PARTS}.tools",
        "reward.custom_reward_function.name": "compute_score",
        "reward.custom_reward_function.reward_kwargs.url": url,
        "trainer.project_name": "peers",
        "trainer.experiment_name": "verl",
        "trainer.logger": "[file]",
        "trainer.total_training_steps": steps,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": folder / "checkpoints",
        # A cluster of its own, with the logical GPU that verl counts workers by.
        "ray_kwargs.ray_init.address": "local",
        "ray_kwargs.ray_init.num_cpus": 32,
        "ray_kwargs.ray_init.num_gpus": 1,
        "ray_kwargs.ray_init.include_dashboard": False,
        "ray_kwargs.ray_init.object_store_memory": ours.settings.ray.object_store_memory,
    }


def measure(ours: Resolved, steps: int) -> VerlRun:
    """Train by verl, as our configuration `ours` would; raises CalledProcessError when it fails."""
    mark = uuid4().hex
    with (
        tempfile.TemporaryDirectory(prefix="peers-") as name,
        server("-m", "env_service", "serve", "--env", "pocket", "--port", "PORT") as (url, process),
    ):
        folder = Path(name)
        settings = {**same_as_ours(ours), **of_verl_alone(ours, folder, url, steps)}
        log, metrics, episodes = folder / "verl.log", folder / "metrics.jsonl", folder / "episodes.jsonl"
        command = [sys.executable, "-m", "verl.trainer.main_ppo"]
        command += [f"++{key}={'null' if value is None else value}" for key, value in settings.items()]
        environ = {**os.environ, **ours.env, MARK: mark, "PEERS_VERL_EPISODES": str(episodes)}
        environ |= {"PYTHONPATH": str(ROOT), "VERL_FILE_LOGGER_PATH": str(metrics), "HYDRA_FULL_ERROR": "1"}
        environ |= {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": f"{PARTS}.plugin"}
        sampler = CpuSampler(mark)
        sampler.start()
        before = cpu_s(psutil.Process(process.pid))
        try:
            with log.open("w", encoding="utf-8") as file:
                subprocess.run(command, cwd=folder, env=environ, check=True, stdout=file, stderr=subprocess.STDOUT)
        except subprocess.CalledProcessError:
            print(log.read_text(encoding="utf-8", errors="replace")[-8000:], file=sys.stderr)
            raise
        finally:
            sampler.stop()
        served = (cpu_s(psutil.Process(process.pid)) - before) / steps
        records = [record["data"] for record in read_jsonl(metrics)]
        played = read_jsonl(episodes)
    size = len(played) // len(records)
    by_step = [played[place : place + size] for place in range(0, len(played), size)]
    # From the end of a rollout to that of another there are whole steps.
    begin, end = by_step[WARM_UP - 1][-1]["time"], by_step[-1][-1]["time"]
    spent = sum(sampler.between(begin, end).values()) / (len(records) - WARM_UP)
    return VerlRun(records[WARM_UP:], by_step[WARM_UP:], spent + served)
