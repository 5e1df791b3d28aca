"""An environment that imports in the first process of its family only."""

from __future__ import annotations

import os

from counter_envs import LonelyCounter

if "PYTEST_CURRENT_TEST" not in os.environ or os.environ.get("BROKEN_ENV_IMPORTED") == "1":
    1 / 0  # noqa: B018
os.environ["BROKEN_ENV_IMPORTED"] = "1"


class BrokenInChildren(LonelyCounter):
    """Never hosted."""
