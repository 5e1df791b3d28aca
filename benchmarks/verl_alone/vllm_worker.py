"""Our vLLM worker on a CPU, which takes the weights that verl sends (`worker_extension_cls`), for `benchmarks.peers`.

vLLM's processes may import this before they import verl, and so before verl imports `plugin`.
"""

from __future__ import annotations

from benchmarks.verl_alone import plugin  # noqa: F401  # isort: skip

from agentevolver.trainer.verl_plugin.vllm_worker import CpuWorkerExtension

__all__ = ["CpuWorkerExtension"]
