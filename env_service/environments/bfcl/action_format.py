"""The action format of BFCL: function calls; a message without one ends the turn."""

from __future__ import annotations

import re

from env_service.action_format import ToolCallFormat
from env_service.feedback import HINT


class BfclFormat(ToolCallFormat):
    """Function calls, explored as in the paper, 7.1.3."""

    exploration = (3, 27)

    def fault(self, action: str, observation: str) -> tuple[str, str] | None:
        told = observation.partition(HINT)[0]
        if (at := told.find("Malformed tool call:")) >= 0:
            return "malformed", " ".join(told[at:].split())
        if (found := _ERROR.search(told)) is None:
            return None
        words = " ".join(found[0].split())
        return "wrong_argument" if "argument" in words or "not found" in words.lower() else "refused", words


_ERROR = re.compile(r'Error during execution: [^\n]*|"error": "[^"\n]*"')


Format = BfclFormat
