"""Stand-ins for when there is neither a model to download nor a GPU: above all the seed policy of the built-in world.

The seed policy is a small Qwen2 with its own tokenizer that knows PocketWorld's tools but not its sites' quirks.
Importing this package imports neither torch nor transformers.
"""

from __future__ import annotations

from pathlib import Path

_FILES = Path(__file__).parent / "seed_policy_files"


def seed_policy_path() -> Path:
    """The folder of the shipped seed policy, in the form `from_pretrained` takes.

    Raises FileNotFoundError if it is not installed.
    """
    if not (_FILES / "config.json").is_file():
        raise FileNotFoundError(
            f"the seed policy is not in {_FILES}; build it with `python -m agentevolver.builtin.seed.policy --out "
            f"{_FILES}`"
        )
    return _FILES


__all__ = ["seed_policy_path"]
