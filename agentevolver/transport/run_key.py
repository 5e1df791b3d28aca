"""The run's key: 32 random bytes that the Ray workers of a training job share, from which each use derives a key of its
own.

It lies in Ray's key-value store under the job's id: in no file, environment or log, and on every node of a cluster. Ray
gives it to whoever has Ray's token, who could run code in the job anyway.
"""

from __future__ import annotations

import hmac
import secrets
from functools import cache

_NAMESPACE = b"agentevolver"


def create() -> None:
    """Make the key of this Ray job; to be called once, before anything that needs it is started."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(_name(), secrets.token_bytes(32), overwrite=False, namespace=_NAMESPACE)


@cache
def key() -> bytes:
    """Return the run's key.

    Raises:
        RuntimeError: this process belongs to no Ray job that has one.
    """
    import ray
    from ray.experimental import internal_kv

    found = internal_kv._internal_kv_get(_name(), namespace=_NAMESPACE) if ray.is_initialized() else None
    if found is None:
        raise RuntimeError(
            "this Ray job has no run key: call agentevolver.transport.run_key.create() before TransferQueue and vLLM "
            "start"
        )
    return bytes(found)


def derived(use: str) -> bytes:
    """Return the key for one use, 32 bytes (HMAC-SHA-256 of the use under the run's key); raises RuntimeError as `key`
    does."""
    return hmac.digest(key(), use.encode(), "sha256")


def _name() -> bytes:
    import ray

    return f"run-key-{ray.get_runtime_context().get_job_id()}".encode()
