"""Memory and disk that a run needs, from a model's config.json and the configuration.

States (parameters, gradients, Adam's two moments) are exact. Activations follow a formula measured on Qwen2 0.5B and
1.5B with torch's flash attention: a layer keeps 2 x (11 hidden + 4 intermediate) bytes a token in bf16, and with
checkpointing only its input, 2 x hidden. Logits count twice (values and gradient), and in fp32 in chunks of 2,048 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.model import DecoderSize
from agentevolver.utils import recipes
from agentevolver.utils.errors import LaunchError

GIB = 1 << 30
# Bytes of two CUDA contexts, NCCL and a sleeping vLLM.
OTHER = 2 * GIB
# Bytes that vLLM needs besides weights and cache: activations of a batch, CUDA graphs.
ENGINE = GIB
CHUNK_ROWS = 2048
# Share of the memory above which a warning is given.
TIGHT = 0.92
STATES = ("parameters", "gradients", "optimiser", "a layer gathered", "other")
BYTES = {"fp32": 4, "float32": 4, "float": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2}
ROOM = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
UTILISATION = "actor_rollout_ref.rollout.gpu_memory_utilization"


@dataclass(frozen=True)
class Demand:
    """Bytes needed on each GPU.

    Args:
        learning: at the peak of an update, by purpose.
        held: by policy and reference policy during a rollout.
        engine: vLLM's minimum: weights and the KV cache of one sequence of full length.
        share: fraction of the GPU's memory that vLLM takes.
        sleeps: whether vLLM frees its memory during an update.
        frozen: GPUs of the frozen policies' server; 0: it takes `share` of the trainer's GPUs too; None: no server.
    """

    learning: Mapping[str, float]
    held: float
    engine: float
    share: float
    sleeps: bool
    frozen: int | None = None

    @property
    def beside(self) -> float:
        """Fraction of the memory that frozen policies on the same GPU always keep."""
        return self.share if self.frozen == 0 else 0.0

    @property
    def states(self) -> float:
        """Bytes an update needs at any micro-batch size."""
        return sum(map(self.learning.__getitem__, STATES))

    def describe(self, memory: int | None) -> list[str]:
        parts = ", ".join(f"{name} {_gib(size)}" for name, size in self.learning.items() if size >= GIB / 10)
        of = f" of {_gib(memory)}" if memory is not None else ""
        vllm = f" and vLLM {_gib(self.share * memory)}" if memory is not None else ""
        where = f"on {self.frozen} GPU(s) of their own" if self.frozen else "on the same GPUs, all the time"
        server = [] if self.frozen is None else [f"    frozen policies: as much as vLLM, {where}"]
        return [
            f"memory of a GPU (an estimate): {_gib(sum(self.learning.values()))} GiB{of} while the policy learns "
            f"({parts})",
            f"    while it is rolled out: the trainer holds {_gib(self.held)}{vllm} (at least {_gib(self.engine)}: "
            "weights, one sequence)",
            *server,
        ]

    def problem(self, memory: int) -> str | None:
        """Return why the run does not fit and what to change, or None if it fits."""
        if self.beside and self.held + 2 * self.share * memory > memory:
            return (
                f"{UTILISATION}={self.share:g} is taken twice, by the training's vLLM and by the frozen policies', "
                f"while the trainer holds {_gib(self.held)} of {_gib(memory)} GiB: lower it to "
                f"{max(0.05, (1 - self.held / memory - 0.05) / 2):.2f}, or give them a GPU of their own"
            )
        engine = self.beside * memory + (0.0 if self.sleeps else self.share * memory)
        if self.states + engine > memory:
            return (
                f"the policy's states need {_gib(self.states)} GiB of a GPU's {_gib(memory)} while it learns: more "
                "GPUs (trainer.n_gpus_per_node), LoRA (actor_rollout_ref.model.lora_rank=32), half the bytes "
                "(…actor.fsdp_config.model_dtype=bf16), or the CPU's memory (….offload_policy=true)"
            )
        if self.engine > self.share * memory:
            return (
                f"vLLM needs {_gib(self.engine)} GiB and {UTILISATION}={self.share:g} gives it "
                f"{_gib(self.share * memory)}: raise it, lower actor_rollout_ref.rollout.max_model_len, or spread it "
                "with actor_rollout_ref.rollout.tensor_model_parallel_size"
            )
        if self.held + self.share * memory > memory:
            return (
                f"{UTILISATION}={self.share:g} takes {_gib(self.share * memory)} of {_gib(memory)} GiB while the "
                f"trainer holds {_gib(self.held)}: lower it to {max(0.05, 1 - self.held / memory - 0.05):.2f}, or set "
                "actor_rollout_ref.actor.fsdp_config.param_offload and optimizer_offload to true"
            )
        return None

    def warning(self, memory: int) -> str | None:
        """Return a warning if the run barely fits, else None."""
        rolling = self.held + self.beside * memory + self.share * memory
        learning = sum(self.learning.values()) + self.beside * memory + (0.0 if self.sleeps else self.share * memory)
        for when, size, key in (("the policy learns", learning, ROOM), ("it is rolled out", rolling, UTILISATION)):
            if size > TIGHT * memory:
                return f"memory is tight while {when} ({_gib(size)} of {_gib(memory)} GiB): lower {key} if it runs out"
        return None


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def _weights(config: DictConfig, model: DecoderSize) -> tuple[float, float]:
    """Return the bytes of all parameters, and of those that are trained."""
    section = config.actor_rollout_ref
    rank = int(OmegaConf.select(section, "model.lora.rank") or OmegaConf.select(section, "model.lora_rank") or 0)
    element = BYTES.get(str(OmegaConf.select(section, "actor.fsdp_config.model_dtype")), 4)
    return model.parameters * element, (model.lora_parameters(rank) if rank else model.parameters) * element


def check_host(config: DictConfig, model: DecoderSize, *, memory: int, disk: int, saved: int) -> list[str]:
    """Return a line on checkpoints (`disk` bytes are free there, with `saved` of them). Raises LaunchError."""
    stored, learnt = _weights(config, model)
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    states = stored + 3 * learnt + model.parameters * BYTES.get(str(rollout.dtype), 2)
    if trainer.device == "cpu" and states > memory:
        raise LaunchError(
            f"the weights in trainer and vLLM, gradients and moments take {_gib(states)} GiB of this machine's "
            f"{_gib(memory)}: take a smaller model, or adapters (actor_rollout_ref.model.lora_rank=32)"
        )
    largest, bucket = 4 * model.hidden * max(model.vocabulary, model.intermediate), OmegaConf.select(config, BUCKET)
    if trainer.device == "cpu" and bucket << 20 < largest:
        raise LaunchError(f"{BUCKET}={bucket}, and the model's largest tensor takes {_gib(largest)} GiB: leave it out")
    sizes = {"model": learnt, "hf_model": stored, "optimizer": 2 * learnt}
    size = sum(sizes.get(name, 0) for name in config.actor_rollout_ref.actor.checkpoint.save_contents)
    if trainer.save_freq <= 0 or not size:
        return []
    steps = trainer.total_training_steps
    counts = (trainer.max_actor_ckpt_to_keep, steps and -(-steps // trainer.save_freq))
    kept = min((count for count in counts if count), default=1)
    if (needed := max(1, kept - saved) * size) > disk:
        raise LaunchError(
            f"checkpoints take {_gib(needed)} GiB, and {_gib(disk)} are free in {trainer.default_local_dir}: free "
            "some, or set trainer.max_actor_ckpt_to_keep=1, trainer.save_freq=-1 or another experiment.root"
        )
    return [f"checkpoints (an estimate): {kept} of {_gib(size)} GiB, {_gib(disk)} GiB are free"]


def demand(config: DictConfig, model: DecoderSize) -> Demand:
    """Estimate the memory that a configuration needs on each GPU under FSDP2."""

    def read(key: str, default: Any = None) -> Any:
        value = OmegaConf.select(config, f"actor_rollout_ref.{key}")
        return default if value is None else value

    def fsdp(section: str, key: str) -> bool:
        return bool(read(f"{section}.fsdp_config.{key}", False))

    gpus = int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)
    shards = int(read("actor.fsdp_config.fsdp_size", -1))
    shards = gpus if shards <= 0 else min(shards, gpus)
    stored, learnt = (size / shards for size in _weights(config, model))
    on_cpu = fsdp("actor", "offload_policy")
    tokens = _tokens(read) / max(1, int(read("actor.fsdp_config.ulysses_sequence_parallel_size", 1)))
    layer = 2 * tokens * (11 * model.hidden + 4 * model.intermediate)
    checkpointed = bool(read("model.enable_gradient_checkpointing", True))
    activations = model.layers * (2 * tokens * model.hidden if checkpointed else layer)
    fused = bool(read("model.use_fused_kernels", False))
    logits = 0.0 if fused else (4 * tokens + 8 * min(tokens, CHUNK_ROWS)) * model.vocabulary
    # The logits are freed before a checkpointed layer is recomputed, so the larger of the two counts.
    learning = {
        "parameters": 0.0 if on_cpu else stored,
        "gradients": 0.0 if on_cpu else learnt,
        "optimiser": 0.0 if on_cpu else 2 * learnt,
        "a layer gathered": 2.0
        * (2 * model.layer_parameters + model.vocabulary * model.hidden * (1 if model.tied else 2)),
        "activations": activations,
        "logits or a layer": max(logits, 1.5 * layer if checkpointed else 0.0),
        "other": float(OTHER),
    }
    held = float(OTHER)
    held += 0.0 if on_cpu or fsdp("actor", "param_offload") else stored
    held += 0.0 if on_cpu or fsdp("actor", "optimizer_offload") else 2 * learnt
    reads_reference = read("actor.use_kl_loss", False) or OmegaConf.select(config, "algorithm.use_kl_in_reward")
    if reads_reference and learnt == stored and not fsdp("ref", "param_offload"):
        reference = model.parameters * BYTES.get(str(read("ref.fsdp_config.model_dtype", "fp32")), 4) / shards
        held += reference
        learning["reference"] = reference
    parallel = max(1, int(read("rollout.tensor_model_parallel_size", 1)))
    weights = model.parameters * BYTES.get(str(read("rollout.dtype", "bfloat16")), 2) / parallel
    length = int(read("rollout.max_model_len", 0) or 0)
    return Demand(
        learning=learning,
        held=held,
        engine=weights + length * model.kv_bytes() / parallel + ENGINE,
        share=float(read("rollout.gpu_memory_utilization", 0.5)),
        sleeps=bool(read("rollout.free_cache_engine", True)),
        frozen=recipes.frozen_gpus(config),
    )


def _tokens(read: Any) -> float:
    """Return the tokens of an update's micro-batch."""
    if bool(read("actor.use_dynamic_bsz", False)):
        return float(read("actor.ppo_max_token_len_per_gpu", 16384))
    rows = int(read("actor.ppo_micro_batch_size_per_gpu", 1) or 1)
    return float(rows * int(read("rollout.max_model_len", 4096) or 4096))
