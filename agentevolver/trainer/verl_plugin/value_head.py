"""Disables verl's patch of trl's value head."""

from __future__ import annotations


def leave_trl_alone() -> None:
    from verl.models.transformers import monkey_patch

    # If trl is installed, verl patches its value head by a name that trl 1.x lacks: an ImportError while the policy
    # loads.
    monkey_patch.is_trl_available = lambda: False
