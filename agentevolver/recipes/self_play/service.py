"""The server of frozen policies that plays the opponents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from agentevolver.launcher.stack import Launch, Services, player_service
from agentevolver.recipes.self_play.settings import FOLDER, settings_of

PLAYER_URL = "ENV_PLAYER_URL"
"""The environment variable with the URL of the frozen policies' server."""


def frozen_gpus(section: Mapping[str, Any]) -> int | None:
    """Return 0, because the server shares the training's GPUs, or None without self-play."""
    return 0 if section["enable"] else None


def services(launch: Launch) -> Services | None:
    section = settings_of(launch.settings)
    if not section.enable or launch.target is None:
        return None
    key = "recipes.self_play.url"
    url, spec = player_service(section.url, launch.folder / "config.yaml", key, 0, logs=launch.logs, env={})
    # The parameter `checkpoint` names policies of the pool, and the start.
    places = (str(launch.folder / FOLDER), os.path.abspath(str(section.start)))
    return Services((spec,), {"recipes": {"self_play": {"url": url}}}, {PLAYER_URL: url}, places)
