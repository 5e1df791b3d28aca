"""verl without trl's value head, which no model of ours has.

Wherever trl is installed, verl patches its value head into every model that it builds, by a name that trl 1.x no longer
has: each training then ends with an ImportError while the policy is loaded.
"""

from __future__ import annotations


def leave_trl_alone() -> None:
    """Let verl build its models as it does where trl is not installed."""
    from verl.models.transformers import monkey_patch

    monkey_patch.is_trl_available = lambda: False
