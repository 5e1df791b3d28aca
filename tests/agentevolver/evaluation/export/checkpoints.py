"""Checkpoints as verl writes them, of a model that is too small to say anything: a file a rank, no processes."""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from agentevolver.trainer.checkpoints import LAYOUT, MODEL, shard
from tests.tiny_model import tiny_model_path

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}


def tiny_model(*, seed: int = 0, adapters: bool = False, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES), dtype=dtype).eval()
    if not adapters:
        return model
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    return adapted.eval()


def save(folder: Path, model: PreTrainedModel, *, ranks: int = 1, adapters: bool = False, only: bool = False) -> Path:
    """Write a checkpoint's folder; two ranks and more hold pieces along the first dimension, the last one's shorter."""
    actor = folder / "actor"
    actor.mkdir(parents=True)
    state = {name: value for name, value in model.state_dict().items() if not only or "lora_" in name}
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        mesh = DeviceMesh("cpu", list(range(ranks)), mesh_dim_names=("fsdp",))
        for rank in range(ranks):
            own = {
                name: DTensor.from_local(
                    _piece(value, ranks, rank), mesh, [Shard(0)], run_check=False, shape=value.shape,
                    stride=value.stride(),
                )
                for name, value in state.items()
            }  # fmt: skip
            torch.save(own, shard(actor, MODEL, ranks, rank))
    finally:
        dist.destroy_process_group()
    (actor / LAYOUT).write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    if adapters:
        (actor / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 12, "task_type": "CAUSAL_LM"}))
    huggingface = actor / "huggingface"
    model.config.save_pretrained(huggingface)
    for path in tiny_model_path().glob("*token*"):
        (huggingface / path.name).write_bytes(path.read_bytes())
    return folder


def _piece(value: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    pieces = value.chunk(ranks)
    return pieces[rank].clone() if rank < len(pieces) else value[:0].clone()


@torch.no_grad()
def log_probs(model: PreTrainedModel) -> torch.Tensor:
    ids = torch.arange(40).reshape(2, 20)
    return model(ids).logits.float().log_softmax(-1)
