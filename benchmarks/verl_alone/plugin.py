"""The CPU as a verl platform and nothing else of our plugin (`VERL_USE_EXTERNAL_MODULES`), for `benchmarks.peers`.

Our plugin also has verl's sockets and vLLM's server ask for the run's key. verl's own run has none.
"""

from __future__ import annotations

from functools import cache

from agentevolver.trainer.transport import worker


@cache
def _leave_open() -> None:
    return


worker.close_off = _leave_open

import agentevolver.trainer.verl_plugin  # noqa: E402, F401
