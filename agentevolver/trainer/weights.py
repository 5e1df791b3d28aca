"""Initial policy weights from a Hugging Face folder or a checkpoint, in place of the model's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentevolver.trainer.checkpoints import ACTOR, KINDS, layout_of, model_difference, shard
from agentevolver.utils.errors import ConfigError, TrainingFailed

KEY = "weights"
"""Key in `actor_rollout_ref` that passes `Weights.to_dict()` or None to the workers."""
_HUGGING_FACE = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class Weights:
    """Location of weights: a Hugging Face folder, or a checkpoint's `actor` folder with one file a rank (`shards`)."""

    kind: Literal["huggingface", "shards"]
    folder: str

    def to_dict(self) -> dict[str, str]:
        return dataclasses.asdict(self)

    @property
    def model_config(self) -> Path:
        return Path(self.folder) / ("huggingface" if self.kind == "shards" else "")


def weights_at(path: Path) -> Weights:
    """Return the weights at a path (Hugging Face folder, `global_step_N`, or its `actor`), without opening a tensor.

    Raises ConfigError if there are none.
    """
    path = path.resolve()
    # The ranks' files come before a Hugging Face copy: they are not rounded.
    for folder in (path / ACTOR, path):
        try:
            layout = layout_of(folder)
        except TrainingFailed as error:
            raise ConfigError(str(error)) from error
        if layout is not None and shard(folder, KINDS["model"], layout.ranks, 0).is_file():
            return Weights("shards", str(folder))
    for folder in (path, path / "huggingface", path / ACTOR / "huggingface"):
        if (folder / "config.json").is_file() and any(any(folder.glob(pattern)) for pattern in _HUGGING_FACE):
            return Weights("huggingface", str(folder))
    raise ConfigError(
        f"trainer.weights = {path} holds no weights: give a Hugging Face folder (config.json and *.safetensors) or a "
        "checkpoint (global_step_N)"
    )


def check_architecture(weights: Weights, model: Mapping[str, Any]) -> None:
    """Raise ConfigError if the weights belong to another architecture, or if the policy has adapters.

    `model` is the section `actor_rollout_ref.model`.
    """
    if has_adapters(model):
        raise ConfigError(
            "trainer.weights cannot be combined with LoRA, whose reference policy is the model without adapters; give "
            "the weights as actor_rollout_ref.model.path"
        )
    own, trusted = str(model.get("hf_config_path") or model["path"]), bool(model.get("trust_remote_code"))
    try:
        difference = model_difference(own, str(weights.model_config), trust_remote_code=trusted)
    except ValueError as error:
        raise ConfigError(f"trainer.weights = {weights.folder}: {error}") from error
    if difference is not None:
        raise ConfigError(f"trainer.weights = {weights.folder} belong to another model than {own}: {difference}")


def has_adapters(model: Mapping[str, Any]) -> bool:
    """Whether the section `actor_rollout_ref.model` configures LoRA."""
    rank = (model.get("lora") or {}).get("rank") or model.get("lora_rank") or 0
    return rank > 0 or model.get("lora_adapter_path") is not None
