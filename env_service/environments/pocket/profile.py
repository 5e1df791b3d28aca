"""The profile of PocketWorld that self-questioning starts from; what it says of the tools is checked against them in
the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PROFILE_PATH = Path(__file__).with_name("profile.json")


def load_profile() -> dict[str, Any]:
    """Return the profile as {name, background, entities, task_preference}."""
    profile: dict[str, Any] = json.loads(PROFILE_PATH.read_text(encoding="utf-8"))
    return profile
