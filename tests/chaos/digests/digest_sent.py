"""In the trainer's worker (`model.external_lib`): our engine, and a digest of each set of weights that it sends."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import torch
from digest_file import Digest, meet
from verl.workers.rollout.utils import ensure_async_iterator
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

import agentevolver.trainer.verl_plugin.engine  # noqa: F401

send = BucketedWeightSender.async_send_weights
transfers = itertools.count(1)


async def digest_and_send(self: Any, weights: Any) -> None:
    digest = Digest()

    async def noted() -> AsyncIterator[tuple[str, torch.Tensor]]:
        async for name, tensor in ensure_async_iterator(weights):
            digest.add(name, tensor)
            yield name, tensor

    await meet(next(transfers))
    await send(self, noted())
    digest.write("sent")


BucketedWeightSender.async_send_weights = digest_and_send
