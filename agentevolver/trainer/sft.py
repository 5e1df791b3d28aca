"""Supervised fine-tuning with verl's SFT trainer: one rank of a cold start (`agentevolver.trainer.job.cold_start`).

It reads FOLDER/episodes.jsonl and leaves a Hugging Face model under FOLDER/checkpoints.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import Dataset
from verl.utils.device import get_device_name, get_nccl_backend, get_torch_device

from agentevolver.config.checks import from_config
from agentevolver.config.schema import Settings
from agentevolver.utils.files import read_jsonl
from agentevolver.utils.processes import die_with_parent

EPISODES = "episodes.jsonl"
CHECKPOINTS = "checkpoints"
# Environment variable with the process id of the ranks' launcher; a rank ends with it.
PARENT = "AGENTEVOLVER_SFT_PARENT"


class Episodes(Dataset[dict[str, torch.Tensor]]):
    """Demonstrations in the unpadded form of verl's SFT trainer: ids, positions and loss mask of one length."""

    def __init__(self, parquet_files: Any, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1):
        self._rows = read_jsonl(Path(str(parquet_files)))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        ids = torch.tensor(self._rows[place]["ids"])
        return {
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "loss_mask": torch.tensor(self._rows[place]["mask"]),
        }


def sft_config(config: DictConfig, settings: Settings, folder: Path, episodes: int) -> DictConfig:
    """Return the configuration of verl's SFT trainer for so many episodes; `config` is the run's."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        sft: DictConfig = compose("sft_trainer_engine")
    actor, wanted = config.actor_rollout_ref.actor, settings.cold_start
    OmegaConf.set_struct(sft, False)
    sft.model = OmegaConf.to_container(config.actor_rollout_ref.model, resolve=True)
    sft.engine = OmegaConf.merge(OmegaConf.to_container(actor.fsdp_config, resolve=True), {"strategy": actor.strategy})
    sft.optim = OmegaConf.merge(
        OmegaConf.to_container(actor.optim, resolve=True),
        {"lr": wanted.lr, "lr_warmup_steps_ratio": wanted.warmup, "lr_scheduler_type": "cosine"},
    )
    sft.checkpoint.save_contents, sft.checkpoint.load_contents = ["hf_model"], []
    ranks = settings.sizes.n_gpus_per_node
    sft.data.train_files, sft.data.val_files = str(folder / EPISODES), None
    sft.data.custom_cls = {"path": "pkg://agentevolver.trainer.sft", "name": "Episodes"}
    # verl drops the last, smaller batch of an epoch (`drop_last`). The cap keeps at least one batch.
    sft.data.train_batch_size = max(ranks, min(wanted.batch_size, episodes) // ranks * ranks)
    sft.data.max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu
    sft.data.num_workers = 0
    sft.trainer.default_local_dir = str(folder / CHECKPOINTS)
    sft.trainer.project_name, sft.trainer.experiment_name = "cold_start", folder.parent.name
    sft.trainer.total_epochs, sft.trainer.seed = wanted.epochs, settings.data.seed
    sft.trainer.logger, sft.trainer.resume_mode = ["file"], "disable"
    sft.trainer.device, sft.trainer.n_gpus_per_node = config.trainer.device, ranks
    return sft


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the rank that RANK and WORLD_SIZE name."""
    parser = argparse.ArgumentParser(prog="python -m agentevolver.trainer.sft")
    parser.add_argument("--config", type=Path, required=True, help="the run's config.yaml")
    parser.add_argument("--folder", type=Path, required=True, help="where episodes.jsonl is")
    options = parser.parse_args(argv)
    if PARENT in os.environ:
        die_with_parent(int(os.environ[PARENT]))
    from verl.trainer.sft_trainer import SFTTrainer

    config = OmegaConf.load(options.config)
    assert isinstance(config, DictConfig)
    settings = from_config(config)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = get_device_name()
    # Without an accelerator verl's own start names the CPU twice, which torch refuses.
    dist.init_process_group(
        "gloo" if device == "cpu" else f"cpu:gloo,{device}:{get_nccl_backend()}",
        # Not `init_method`, which takes a URL: a folder's name may hold `#` or `?`.
        store=dist.FileStore(str(options.folder.resolve() / "ranks"), ranks),  # type: ignore[attr-defined]
        rank=rank,
        world_size=ranks,
    )
    get_torch_device().set_device(rank)
    with (options.folder / EPISODES).open("rb") as lines:
        episodes = sum(1 for _ in lines)
    SFTTrainer(sft_config(config, settings, options.folder, episodes)).fit()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
