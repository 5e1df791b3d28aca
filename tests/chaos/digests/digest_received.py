"""In vLLM's worker (`worker_extension_cls`): a digest of each set of weights that it receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from digest_file import Digest
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

from agentevolver.trainer.verl_plugin.vllm_worker import CpuWorkerExtension

receive = BucketedWeightReceiver.receive_weights


def receive_and_digest(self: Any, on_bucket_received: Callable[[list[tuple[str, torch.Tensor]], bool], None]) -> None:
    digest = Digest()

    def noted(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
        for name, tensor in bucket:
            digest.add(name, tensor)
        on_bucket_received(bucket, is_last)

    receive(self, on_bucket_received=noted)
    digest.write("received")


BucketedWeightReceiver.receive_weights = receive_and_digest


class DigestingExtension(CpuWorkerExtension):
    """Ours, with the digests above."""
