"""The action format of textarena: a move in the game's words. No action ends an episode by itself."""

from __future__ import annotations

from env_service.action_format import PlainFormat


class TextArenaFormat(PlainFormat):
    exploration = (3, 12)

    def explore_params(self, steps: int) -> dict[str, int]:
        return {"explore_steps": max(1, min(steps, 1000))}


Format = TextArenaFormat
