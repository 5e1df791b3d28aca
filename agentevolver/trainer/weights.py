"""Weights that a training begins with in the place of the model's own: of a Hugging Face folder, or of a checkpoint.

The model stays what `actor_rollout_ref.model` says: architecture, tokenizer, and the reference policy's weights.
Nothing but the policy's weights is read, so that optimiser, schedule and random states begin anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentevolver.trainer.checkpoints import ACTOR, KINDS, layout_of, model_difference, shard
from agentevolver.utils.errors import ConfigError, TrainingFailed

KEY = "weights"
"""Where they are told to the workers, in `actor_rollout_ref`: what `Weights.to_dict` returns, or None."""
_HUGGING_FACE = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class Weights:
    """Where weights lie: a Hugging Face folder, or the `actor` folder of a checkpoint with a file a rank (`shards`)."""

    kind: Literal["huggingface", "shards"]
    folder: str

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON-ready keys."""
        return dataclasses.asdict(self)

    @property
    def model_config(self) -> Path:
        """The folder that holds the model's `config.json`."""
        return Path(self.folder) / ("huggingface" if self.kind == "shards" else "")


def weights_at(path: Path) -> Weights:
    """Return what kind of weights lie at a path; opens no tensor.

    Args:
        path: a Hugging Face folder, a checkpoint (`global_step_N`), or its folder `actor`. Of a checkpoint that holds
            both, the ranks' files are taken, which are not rounded.

    Raises:
        ConfigError: there are none.
    """
    path = path.resolve()
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
    """Refuse weights of another model than the run's.

    Args:
        weights: what is to be begun with.
        model: the section `actor_rollout_ref.model`.

    Raises:
        ConfigError: the shapes or kinds of layers differ, by the two models' configurations; or the policy has
            adapters, whose reference would be these weights too.
    """
    if has_adapters(model):
        raise ConfigError(
            "trainer.weights cannot be combined with LoRA, whose reference is the policy without adapters: it would "
            "be these weights; name them as actor_rollout_ref.model.path"
        )
    own, trusted = str(model.get("hf_config_path") or model["path"]), bool(model.get("trust_remote_code"))
    try:
        difference = model_difference(own, str(weights.model_config), trust_remote_code=trusted)
    except ValueError as error:
        raise ConfigError(f"trainer.weights = {weights.folder}: {error}") from error
    if difference is not None:
        raise ConfigError(f"trainer.weights = {weights.folder} are of another model than {own}: {difference}")


def has_adapters(model: Mapping[str, Any]) -> bool:
    """Whether the section `actor_rollout_ref.model` gives the policy adapters (LoRA)."""
    rank = (model.get("lora") or {}).get("rank") or model.get("lora_rank") or 0
    return rank > 0 or model.get("lora_adapter_path") is not None
