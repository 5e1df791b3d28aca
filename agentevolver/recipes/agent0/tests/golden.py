"""The golden files of this folder's tests: numbers worked out by hand, not by the code under test."""

import json
from pathlib import Path
from typing import Any


def golden(name: str) -> Any:
    """Return what golden/NAME.json holds."""
    return json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())
