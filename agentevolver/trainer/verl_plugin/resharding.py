"""Resuming on another number of ranks: each rank reads all ranks' pieces, joins them, and keeps its new piece."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from agentevolver.trainer.checkpoints import EXTRA, MODEL, OPTIMIZER, check_ranks, layout_of, shard
from agentevolver.trainer.shards import joined, read_shards
from agentevolver.trainer.verl_plugin.log_probs import mask_unsampled
from agentevolver.trainer.verl_plugin.rotary import restore_rotary
from agentevolver.utils.turn_ends import restore_ends


def resharded(pieces: Sequence[Any], model: torch.Tensor) -> Any:
    """Return a checkpoint's value as this rank would have written it. Raises ValueError if the pieces do not fit.

    `pieces` are the ranks' values in order. `model` is a tensor with the wanted split and device.
    """
    if not isinstance(pieces[0], DTensor):
        return pieces[0]
    if pieces[0].shape != model.shape:
        raise ValueError(
            f"the checkpoint's tensor has the shape {tuple(pieces[0].shape)}, the model's {tuple(model.shape)}"
        )
    whole = joined(pieces)
    if not isinstance(model, DTensor):
        return whole
    return distribute_tensor(whole, model.device_mesh, model.placements, src_data_rank=None).to(model.device)


def leave_attention_open(path: Path) -> None:
    """Remove the attention implementation from a model's `config.json`: other programs may lack it."""
    if not path.is_file():
        return
    config = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in config.items() if key not in ("attn_implementation", "_attn_implementation")}
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


class ReshardingCheckpointManager(FSDPCheckpointManager):
    """verl's checkpoint manager, which also loads checkpoints of another number of ranks."""

    def load_checkpoint(
        self, local_path: str | None, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Load a checkpoint's `actor` folder. Raises TrainingFailed if this number of ranks cannot."""
        layout = None if local_path is None else layout_of(Path(local_path))
        if local_path is None or layout is None or layout.ranks == self.world_size:
            super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
            return
        folder = Path(local_path)
        check_ranks(folder, self.world_size, tuple(self.checkpoint_load_contents))
        if self.should_load_model:
            self._load_model(read_shards(folder, MODEL, layout.ranks))
        if self.should_load_optimizer:
            self._load_optimizer(read_shards(folder, OPTIMIZER, layout.ranks))
        if self.should_load_extra:
            self._load_extra(folder, layout.ranks)
        torch.distributed.barrier()

    def save_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, global_step: int = 0, max_ckpt_to_keep: int | None = None
    ) -> None:
        super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
        if self.rank == 0:
            folder = Path(local_path) / "huggingface"
            leave_attention_open(folder / "config.json")
            restore_ends(folder, str(self.model.config.name_or_path))

    def _load_model(self, saved: Sequence[Mapping[str, Any]]) -> None:
        own = self.model.state_dict()
        unknown = sorted(saved[0].keys() - own.keys())
        missing = [] if self.is_lora_only_state_dict(saved[0]) else sorted(own.keys() - saved[0].keys())
        if unknown or missing:
            raise ValueError(
                f"the checkpoint belongs to another model: unknown here are {unknown[:3]}, missing there {missing[:3]}"
            )
        # In place, tensor by tensor: a second copy of the weights might not fit beside the first.
        with torch.no_grad():
            for name in saved[0]:
                own[name].copy_(resharded([pieces[name] for pieces in saved], own[name]))

    def _load_optimizer(self, saved: Sequence[Mapping[str, Any]]) -> None:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        state = {
            index: {
                name: resharded([pieces["state"][index][name] for pieces in saved], parameters[index])
                for name in values
            }
            for index, values in saved[0]["state"].items()
        }
        self.optimizer.load_state_dict({"state": state, "param_groups": saved[0]["param_groups"]})

    def _load_extra(self, folder: Path, ranks: int) -> None:
        extra = torch.load(shard(folder, EXTRA, ranks, min(self.rank, ranks - 1)), weights_only=False)
        # A rank that did not exist before keeps its initial random state.
        if self.rank < ranks and "rng" in extra:
            self.load_rng_state(extra["rng"])
        if extra["lr_scheduler"] is not None and self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(extra["lr_scheduler"])


class ReshardingEngine(FSDPEngineWithLMHead):
    """verl's engine with the checkpoint manager above, rotary frequencies in float32, and vLLM's mask of logits."""

    checkpoint_manager: Any

    def _build_module(self) -> torch.nn.Module:
        module: torch.nn.Module = super()._build_module()
        restore_rotary(module)
        return module

    def _build_model_optimizer(self) -> None:
        super()._build_model_optimizer()
        # On the outermost module: PEFT's adapters call the inner one without its hooks.
        mask_unsampled(self.module, self.model_config)

    def initialize(self) -> None:
        super().initialize()
        theirs = self.checkpoint_manager
        self.checkpoint_manager = ReshardingCheckpointManager(
            model=theirs.model,
            optimizer=theirs.optimizer,
            lr_scheduler=theirs.lr_scheduler,
            processing_class=theirs.processing_class,
            checkpoint_config=theirs.checkpoint_config,
            trust_remote_code=theirs.trust_remote_code,
        )


def register() -> None:
    """Replace verl's engine on NVIDIA devices."""
    # verl looks up an engine by vendor before one by device.
    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="nvidia")(
        ReshardingEngine
    )
