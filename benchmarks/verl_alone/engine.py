"""verl's engine on a CPU with verl's own log-probs (`model.external_lib`), for `benchmarks.peers`.

Our engine also brings faster log-probs and an attention of packed rows. The latter has to be asked for by name.
"""

from __future__ import annotations

from verl.utils import torch_functional

_VERLS = torch_functional.logprobs_from_logits_v2

import agentevolver.trainer.verl_plugin.engine  # noqa: E402, F401

torch_functional.logprobs_from_logits_v2 = _VERLS
