"""vLLM worker on a CPU: takes new weights, and samples (`rollout.engine_kwargs.vllm.worker_extension_cls`).

vLLM's CPU linear layers pack their weights for oneDNN and drop the originals, so verl's way (load into the live model)
finds nothing to load into. vLLM's own `reload_weights` restores the layers first, and takes the tensors that verl
sends.

Its sampler for CPUs forgets the seeds of all requests in a batch unless every one of them has one (a greedy request has
none); the sampler that it has for other devices does not.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """verl's worker extension with the weight update replaced, and seeds that count whoever is in the batch."""

    def __new__(cls, **kwargs: Any) -> CpuWorkerExtension:
        TopKTopPSampler.forward_cpu = TopKTopPSampler.forward_native
        made: CpuWorkerExtension = super().__new__(cls, **kwargs)
        return made

    def update_weights_from_ipc(
        self, peft_config: dict[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Receive all buckets from the trainer through shared memory, then reload layer by layer.

        Raises ValueError for LoRA adapters that come apart from the weights: merged into them they are weights like any
        other.
        """
        if peft_config:
            raise ValueError(
                "LoRA adapters reach vLLM on a CPU merged into the weights: set actor_rollout_ref.model.lora.merge to "
                "true"
            )
        weights: list[tuple[str, torch.Tensor]] = []

        def keep(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            weights.extend((name, tensor.clone()) for name, tensor in bucket)

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=keep)
        self.reload_weights(weights_iterator=iter(weights))
