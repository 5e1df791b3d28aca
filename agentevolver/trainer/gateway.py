"""Gateway metrics of a step's rollouts, and a warning if an agent rewrites its own history."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from agentevolver.trainer.parts import TrainerPart
from agentevolver.types import Trajectory

logger = logging.getLogger(__name__)

# Mean chains of a rollout above which a warning is due: each chain repeats its whole prompt, in the rollout and in
# training.
MANY_CHAINS = 2.0


def gateway_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return means over rollouts and counts by name, or {} if no rollout used the gateway."""
    facts = [one.gateway for one in trajectories if one.gateway is not None and one.gateway["calls"]]
    if not facts:
        return {}
    metrics = {
        "gateway/chains_per_rollout": sum(one["chains"] for one in facts) / len(facts),
        "gateway/calls_per_rollout": sum(one["calls"] for one in facts) / len(facts),
        # Replies under constrained decoding, which are not what the policy would have sampled.
        "gateway/structured_per_rollout": sum(one["structured"] for one in facts) / len(facts),
    }
    for kind in ("ignored", "refused"):
        counted: Counter[str] = sum((Counter(one[kind]) for one in facts), Counter())
        metrics |= {f"gateway/{kind}/{name}": float(count) for name, count in counted.items()}
        metrics[f"gateway/{kind}"] = float(counted.total())
    return metrics


def fork_warning(trajectories: Sequence[Trajectory]) -> str | None:
    """Return a warning with the first message that differed if rollouts split into many chains, else None."""
    facts = [one.gateway for one in trajectories if one.gateway is not None and one.gateway["calls"]]
    mean = sum(one["chains"] for one in facts) / len(facts) if facts else 0.0
    differences = [one["differences"][0] for one in facts if one["differences"]]
    if mean <= MANY_CHAINS or not differences:
        return None
    first = differences[0]
    return (
        f"the agent's calls make {mean:.1f} chains a rollout, each a training sample of its own: it changes earlier "
        f"messages when it repeats them. First at message {first['place'] + 1}: {first['before']!r} became "
        f"{first['after']!r} (docs/train_your_agent.md)"
    )


class ForkWatch(TrainerPart):
    """Logs `fork_warning` once a run."""

    def __init__(self) -> None:
        self._warned = False

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        if not self._warned and (warning := fork_warning(trajectories)) is not None:
            logger.warning("%s", warning)
            self._warned = True
        return {}
