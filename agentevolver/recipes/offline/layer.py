"""Defaults of a run without a model of its own: the seed policy and its sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.recipes.offline.settings import POLICY_ENVIRONMENTS
from agentevolver.utils import recipes

MODEL = "actor_rollout_ref.model.path"
# Words of the seed policies' tokenizers: 768 and less. Those of pretrained chat models have 32,000 and more.
MOST_WORDS = 1024
_FOLDER = Path(__file__).parent


def layer(device: str, written: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the layer that selects the seed policy and its sizes, or None. It applies on a CPU unless another
    model is named, and on a GPU if no model is named and the seed policy was trained for the environment."""
    OmegaConf.register_new_resolver("seed_policy", lambda name="pocket": str(seed_policy_path(name)), replace=True)
    model = recipes.written(written, MODEL)
    if device == "cpu":
        return _read("seed_policy.yaml") if model is None or _is_seed_policy(str(model)) else None
    known = recipes.written(written, "env_service.env_type") in POLICY_ENVIRONMENTS
    if device != "cuda" or model is not None or not known:
        return None
    both = OmegaConf.merge(_read("seed_policy.yaml"), _read("one_gpu.yaml"))
    return OmegaConf.to_container(both, resolve=False)  # type: ignore[return-value]


def _is_seed_policy(model: str) -> bool:
    """Whether a folder holds one of this kit's policies, or is where one will be built (`seed_NAME`)."""
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "${seed_policy:" in model or Path(model).name.startswith("seed_")
    return int(config.get("vocab_size", MOST_WORDS + 1)) <= MOST_WORDS


def _read(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((_FOLDER / name).read_text(encoding="utf-8"))
    return tree
