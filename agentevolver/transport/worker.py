"""What every worker of a run does before it imports what it works with (`worker_process_setup_hook` of Ray's runtime
environment).

Ray runs it in each worker of the job, before its first task. vLLM's processes, which are no workers of Ray's, run it as
they import verl, which loads our plugin.
"""

from __future__ import annotations

from functools import cache

import wrapt

from agentevolver.transport import curve, rendezvous, server_key, weights
from agentevolver.utils.secrets import LIBRARIES, adopt_secrets

HOOK = f"{__name__}.begin"
_VLLM_ROLLOUT = "verl.workers.rollout.vllm_rollout"


def begin() -> None:
    """What Ray runs: `close_off`, and the proxies and the hub's address that libraries in this worker look for in its
    variables."""
    close_off()
    # Not in what is cached: a nursery has closed off already what is forked from it, and has no secrets.
    adopt_secrets(LIBRARIES)


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
