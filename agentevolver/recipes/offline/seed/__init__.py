"""Small policies for runs without a model to download or a GPU. Importing this package imports neither torch nor
transformers.

The seed policy is a small Qwen2 with its own tokenizer that knows PocketWorld's tools but not its sites' quirks. The
stronger base of `pocket_app` has the same size.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
_FOLDERS = {"pocket": _HERE / "seed_policy_files", "app": _HERE / "app_policy_files"}
SHIPPED = {
    "the seed policy that comes with AgentEvolver": _FOLDERS["pocket"],
    "the stronger base of pocket_app that comes with AgentEvolver": _FOLDERS["app"],
}
"""The folders of the shipped policies, by a name for users."""


def seed_policy_path(name: str = "pocket") -> Path:
    """Return the folder of a shipped policy: `pocket`, the seed policy, or `app`, the stronger base of `pocket_app`.
    Raises ValueError for another name, FileNotFoundError if it is not installed."""
    if name not in _FOLDERS:
        raise ValueError(f"no policy {name!r} is shipped; there are {', '.join(_FOLDERS)}")
    if not (_FOLDERS[name] / "config.json").is_file():
        raise FileNotFoundError(f"the seed policy {name} is not in {_FOLDERS[name]}")
    return _FOLDERS[name]


__all__ = ["SHIPPED", "seed_policy_path"]
