"""Defaults of a run without a model of its own: the seed policy and its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.recipes.offline.settings import POLICY_ENVIRONMENTS
from agentevolver.utils import recipes

_FOLDER = Path(__file__).parent


def layer(device: str, written: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the seed policy's layer on a CPU. On a GPU return it if no layer names a model and the policy knows the
    environment, so that the examples need no model hub."""
    OmegaConf.register_new_resolver("seed_policy", lambda name="pocket": str(seed_policy_path(name)), replace=True)
    if device == "cpu":
        return _read("seed_policy.yaml")
    model = recipes.written(written, "actor_rollout_ref.model.path")
    if (
        device != "cuda"
        or model is not None
        or recipes.written(written, "env_service.env_type") not in POLICY_ENVIRONMENTS
    ):
        return None
    both = OmegaConf.merge(_read("seed_policy.yaml"), _read("one_gpu.yaml"))
    return OmegaConf.to_container(both, resolve=False)  # type: ignore[return-value]


def _read(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((_FOLDER / name).read_text(encoding="utf-8"))
    return tree
