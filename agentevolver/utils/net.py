"""The network of what runs on one machine: loopback, and nothing else."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"
ON_LOOPBACK = {
    # Where Ray does not expect a cluster (it says Windows and macOS) a node is at 127.0.0.1, and GCS, raylet, agents, workers and drivers
    # listen there. Elsewhere it takes 127.0.0.1 for a mistake, and at any other address most of them listen on all interfaces.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": LOOPBACK,
}
"""What the processes of a Ray cluster of one machine have in their environment, from before they import Ray."""
