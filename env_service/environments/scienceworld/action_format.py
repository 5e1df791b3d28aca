"""The action format of ScienceWorld: `action: COMMAND`; `action: done` ends an episode without a goal."""

from __future__ import annotations

from env_service.environments.gymnasium.action_format import GymnasiumFormat as GymnasiumFormat


class ScienceWorldFormat(GymnasiumFormat):
    exploration = (4, 30)


Format = ScienceWorldFormat
