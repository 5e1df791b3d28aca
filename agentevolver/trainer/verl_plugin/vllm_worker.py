"""vLLM worker extension on a CPU: receives new weights, and samples with seeds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.model_executor.model_loader import default_loader
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """verl's worker extension with another weight update."""

    def __new__(cls, **kwargs: Any) -> CpuWorkerExtension:
        # vLLM's CPU sampler ignores the seeds of a batch unless every request has one, and greedy requests have none.
        TopKTopPSampler.forward_cpu = TopKTopPSampler.forward_native
        # vLLM (0.24) takes the folder of the weights for a part of the glob: `[` in it would find nothing.
        default_loader.glob = SimpleNamespace(glob=lambda path: [*map(str, Path(path).parent.glob(Path(path).name))])
        made: CpuWorkerExtension = super().__new__(cls, **kwargs)
        return made

    def update_weights_from_ipc(
        self, peft_config: dict[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Receive all weights through shared memory, then reload them layer by layer.

        Raises ValueError for LoRA adapters that are not merged into the weights.
        """
        if peft_config:
            raise ValueError(
                "on a CPU vLLM needs adapters merged into the weights: set actor_rollout_ref.model.lora.merge to true"
            )
        weights: list[tuple[str, torch.Tensor]] = []

        def keep(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            weights.extend((name, tensor.clone()) for name, tensor in bucket)

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=keep)
        # vLLM's CPU linear layers pack their weights for oneDNN and drop the originals, so verl's load into the live
        # model finds no target. `reload_weights` restores the layers first.
        self.reload_weights(weights_iterator=iter(weights))
