"""The action format of tau2: function calls; a message without one is said to the customer."""

from __future__ import annotations

from env_service.action_format import ToolCallFormat


class Tau2Format(ToolCallFormat):
    exploration = (3, 20)


Format = Tau2Format
