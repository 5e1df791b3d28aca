"""What every worker of a run does before it imports what it works with (`worker_process_setup_hook` of Ray's runtime environment).

Ray runs it in each worker of the job, before its first task. vLLM's processes, which are no workers of Ray's, run it as they import verl,
which loads our plugin.
"""

from __future__ import annotations

from functools import cache

import wrapt

from agentevolver.transport import curve, rendezvous, server_key, weights

HOOK = f"{__name__}.close_off"
_VLLM_ROLLOUT = "verl.workers.rollout.vllm_rollout"


@cache
def close_off() -> None:
    """Have the modules below changed: at once where they are imported already, as they are imported elsewhere."""
    for name, install in (
        ("transfer_queue.utils.zmq_utils", curve.install),
        ("torch.distributed.rendezvous", rendezvous.install),
        (f"{_VLLM_ROLLOUT}.bucketed_weight_transfer", weights.install),
        (f"{_VLLM_ROLLOUT}.vllm_async_server", server_key.install),
    ):
        wrapt.register_post_import_hook(install, name)
