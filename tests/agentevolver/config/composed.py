"""The composed configurations of devices and presets, as leaves that can be compared.

`python tests/agentevolver/config/composed.py` writes them to composed.json: do that after a change of defaults that is
meant, and read the difference. The file was first written when the defaults moved from yaml into the models, and equal
to what was composed before but for the spelling of `stages` and of a moved class.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

ROOT = Path(__file__).parents[3]
FILE = Path(__file__).with_name("composed.json")
sys.path.insert(0, str(ROOT))

from agentevolver.config.checks import load  # noqa: E402

BASE = "device=cuda"


def cases() -> dict[str, list[str]]:
    """Each case's overrides: the devices, the presets of experience."""
    devices = {f"device={name}": [f"device={name}"] for name in ("cuda", "cpu")}
    presets = {
        f"exp_manager.preset={preset} device={name}": [f"device={name}", f"exp_manager.preset={preset}"]
        for preset in ("paper", "original")
        for name in ("cpu", "cuda")
    }
    return {**devices, **presets}


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """Return each leaf of a tree by its dotted path; an empty section is a leaf."""
    if isinstance(tree, dict) and tree:
        found: dict[str, Any] = {}
        for key, value in tree.items():
            found |= leaves(value, f"{path}.{key}" if path else str(key))
        return found
    if path.startswith("recipes."):  # they may be removed, and have tests of their own
        return {}
    return {path: json.loads(json.dumps(tree, default=str).replace(str(ROOT), "ROOT"))}


def compose() -> dict[str, dict[str, Any]]:
    """Return the leaves of the first case, and of each other those that differ; None where a leaf is missing."""
    found: dict[str, dict[str, Any]] = {}
    base: dict[str, Any] = {}
    for name, overrides in cases().items():
        own = leaves(OmegaConf.to_container(load(None, overrides).config, resolve=False))
        if name == BASE:
            found[name] = base = own
        else:
            found[name] = {key: own.get(key) for key in sorted({*base, *own}) if own.get(key) != base.get(key)}
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(compose(), indent=1) + "\n", encoding="utf-8")
