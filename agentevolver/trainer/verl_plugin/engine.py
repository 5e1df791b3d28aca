"""verl's FSDP2 engine on a CPU, loaded in every worker by `actor_rollout_ref.model.external_lib`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name
from verl.utils.model import convert_weight_keys
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine import EngineRegistry

from agentevolver.trainer.verl_plugin import log_probs, value_head, varlen_attention
from agentevolver.trainer.verl_plugin.resharding import ReshardingEngine


def init_gloo_process_group() -> None:
    """Join the worker group that Ray laid out (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), once per process."""
    # verl names the device twice on a CPU ("cpu:gloo,cpu:gloo"), which torch refuses; verl skips this if a group
    # exists.
    if os.environ.get("WG_BACKEND") == "ray" and "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))


def own_threads() -> int:
    """Return the threads of an actor's rank: its share of the CPUs, at most 4."""
    # vLLM idles while the actor computes, and vice versa, so each may use all CPUs. OMP_NUM_THREADS bounds vLLM's
    # threads.
    return max(1, min(4, len(os.sched_getaffinity(0)) // int(os.environ.get("WORLD_SIZE", "1"))))


class _EveryRankLoads:
    # Claims rank 0 on every rank, so that an unwrapped module gets real weights everywhere.
    def get_coordinate(self) -> list[int]:
        return [0]


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuEngine(ReshardingEngine):
    """FSDP2 on gloo for the trained model, the plain module for a read-only model (`forward_only`)."""

    device_mesh: Any
    engine_config: Any
    module: Any

    def initialize(self) -> None:
        super().initialize()
        torch.set_num_threads(own_threads())

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        asked = self.engine_config
        precision: dict[str, Any] = asked.mixed_precision or {}
        if not asked.forward_only:
            # In bf16 only the matrix products are rounded, by autocast. verl rounds the weights before each pass too,
            # and with them norms and the residual stream, which is as fast and further from vLLM's log-probs.
            self.engine_config = replace(asked, mixed_precision={**precision, "param_dtype": "fp32"})
            try:
                module = super()._build_fsdp_module(module)
            finally:
                self.engine_config = asked
        # verl offloads the reference model through pinned memory, which needs an accelerator. Unwrapped it stays in
        # place.
        self._autocast_dtype = PrecisionType.to_dtype(precision.get("param_dtype", "bf16"))
        self.scaler = None
        return module

    def _build_module(self) -> torch.nn.Module:
        if not self.engine_config.forward_only:
            trained: torch.nn.Module = super()._build_module()
            return trained
        mesh, self.device_mesh = self.device_mesh, _EveryRankLoads()
        try:
            read_only: torch.nn.Module = super()._build_module()
            return read_only
        finally:
            self.device_mesh = mesh

    def _merged_lora_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        # verl rounds merged adapters to bf16; vLLM on a CPU rolls out in fp32 and would sample another policy.
        with merged_lora_context(self.module, backup_adapters=True):
            weights = convert_weight_keys(normalize_peft_param_name(self.module.state_dict()), self.module)
            for name, weight in weights.items():
                yield name, (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().clone()


init_gloo_process_group()
log_probs.install()
varlen_attention.register()
value_head.leave_trl_alone()
