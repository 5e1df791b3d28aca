"""The action format of BFCL: function calls; a message without one ends the turn."""

from __future__ import annotations

from env_service.action_format import ToolCallFormat


class Format(ToolCallFormat):
    """Function calls, explored as in the paper, 7.1.3."""

    exploration = (3, 27)
