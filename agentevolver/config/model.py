"""A model's sizes, read from its folder, and the defaults that follow from them.

If a recipe supplies the model (`Recipe.layer` names its path), the recipe's sizes are used instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from agentevolver.config.devices import Device, cpu_precision, visible_gpus
from agentevolver.config.model_files import broken_in, snapshot
from agentevolver.utils.errors import ConfigError, UsageError

PATH = "actor_rollout_ref.model.path"
_ACTOR, _REF, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
PROMPT, RESPONSE, CONTEXT = "data.max_prompt_length", "data.max_response_length", f"{_ROLLOUT}.max_model_len"
REPLY, OBSERVATION, STEPS = f"{_ROLLOUT}.response_length", f"{_ROLLOUT}.max_env_len", f"{_ROLLOUT}.multi_turn.max_steps"
LENGTHS = (PROMPT, RESPONSE, CONTEXT, REPLY, OBSERVATION)
# Peak learning rates of all weights by parameters (design: RAGEN, prime-rl and our sweeps), GRPO and cold start.
_RATES = ((3e8, 1.0e-5, 5.0e-5), (1e9, 3.0e-6, 1.0e-5), (3e9, 2.0e-6, 1.0e-5), (float("inf"), 1.0e-6, 1.0e-5))
_LORA_RATE = 20  # adapters take so many times the rate of all weights
# Tokens of a row: two cores train 50 to 170 a second, and a row's logits and activations must fit into memory.
_LONGEST = {"cpu": 2048, "cuda": 32768}
_GIB = 1 << 30


@dataclass(frozen=True)
class DecoderSize:
    """Sizes of a decoder in elements, without biases and norms (0.1 % of the parameters)."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool
    head_size: int = 0  # 0: hidden / heads
    experts: int = 0
    expert_intermediate: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> DecoderSize:
        """Read a config.json (of a multimodal model: its language model). Raises KeyError if it is not a decoder."""
        text: Mapping[str, Any] = config.get("text_config") or config
        experts = next(
            (int(text[key]) for key in ("num_experts", "num_local_experts", "n_routed_experts") if text.get(key)), 0
        )
        return cls(
            hidden=int(text["hidden_size"]),
            intermediate=int(text["intermediate_size"]),
            layers=int(text["num_hidden_layers"]),
            heads=int(text["num_attention_heads"]),
            kv_heads=int(text.get("num_key_value_heads") or text["num_attention_heads"]),
            vocabulary=int(text["vocab_size"]),
            tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
            head_size=int(text.get("head_dim") or 0),
            experts=experts,
            expert_intermediate=int(text.get("moe_intermediate_size") or text["intermediate_size"]) if experts else 0,
        )

    @property
    def _attention(self) -> int:
        size = self.head_size or self.hidden // self.heads
        return self.hidden * size * 2 * (self.heads + self.kv_heads)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, including all experts."""
        width = self.experts * self.expert_intermediate if self.experts else self.intermediate
        return self._attention + 3 * self.hidden * width + self.hidden * self.experts

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def lora_parameters(self, rank: int) -> int:
        """Parameters of LoRA adapters on all linear layers of a dense model."""
        size = self.head_size or self.hidden // self.heads
        attention = 2 * (self.hidden + self.heads * size) + 2 * (self.hidden + self.kv_heads * size)
        return self.layers * rank * (attention + 3 * (self.hidden + self.intermediate))

    def kv_bytes(self) -> int:
        """Bytes of one token in a KV cache of bfloat16."""
        return 2 * 2 * self.layers * self.kv_heads * (self.head_size or self.hidden // self.heads)


@dataclass(frozen=True)
class Model:
    """A model as its `config.json` describes it. `context` is its maximum number of tokens."""

    name: str
    size: DecoderSize
    context: int

    def describe(self) -> str:
        return f"{self.name} ({self.size.parameters / 1e6:,.0f} M parameters, context {self.context:,})"


def read_model(path: str) -> Model | None:
    """Return the model of a folder or of the hub's cache; None if it is not there, or no decoder."""
    folder = snapshot(path)
    if folder is None or not (folder / "config.json").is_file():
        return None
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text: Mapping[str, Any] = config.get("text_config") or config
        return Model(path.rstrip("/").rpartition("/")[2], DecoderSize.of(config), int(text["max_position_embeddings"]))
    except (KeyError, ValueError, TypeError):
        return None


def check_model(config: DictConfig) -> list[str]:
    """Return what is known of the model. Raises UsageError if a file of its folder is missing or broken."""
    model = config.actor_rollout_ref.model
    path, tokenizer = str(model.path), str(model.tokenizer_path or model.path)
    for key, name in (("path", path), ("tokenizer_path", tokenizer)):
        # A name on the Hugging Face hub is NAME or OWNER/NAME.
        local_only = name.startswith(("/", ".", "~")) or name.count("/") > 1 or os.path.exists(name)
        if local_only and not Path(name).is_dir():
            raise UsageError(f"actor_rollout_ref.model.{key}={name} does not exist as a folder: give one that does")
    templated = not (config.data.apply_chat_template_kwargs or {}).get("chat_template")
    words = snapshot(tokenizer)
    if Path(path).is_dir() and (problem := broken_in(Path(path), words, templated=templated)) is not None:
        raise UsageError(f"actor_rollout_ref.model.path={path}: {problem}")
    known = read_model(path)
    return [path if known is None else known.describe()]


def defaults_of(model: Model, device: Device, *, lora: bool) -> dict[str, Any]:
    """Return the values that follow from a model's size, by dotted key."""
    parameters = model.size.parameters
    lr, imitation = next((rl, sft) for below, rl, sft in _RATES if parameters < below)
    tokens = 16384 if device == "cuda" else 1536
    found: dict[str, Any] = {
        f"{_ACTOR}.optim.lr": lr * (_LORA_RATE if lora else 1),
        f"{_ACTOR}.optim.lr_warmup_steps": 5,
        # A micro-batch holds the longest row.
        f"{_ACTOR}.ppo_max_token_len_per_gpu": f"${{larger:{tokens},${{{CONTEXT}}}}}",
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": f"${{larger:{2 * tokens},${{{CONTEXT}}}}}",
        f"{_REF}.log_prob_max_token_len_per_gpu": f"${{larger:{2 * tokens},${{{CONTEXT}}}}}",
        "cold_start.lr": imitation,
        "cold_start.batch_size": 16,
        "cold_start.epochs": 3 if parameters < 3e8 else 2,
    }
    if device == "cuda":
        offload = 16 * parameters / visible_gpus() > 8 * _GIB  # weights, gradients and Adam's moments in float32
        return found | {
            f"{_ACTOR}.fsdp_config.param_offload": offload,
            f"{_ACTOR}.fsdp_config.optimizer_offload": offload,
            f"{_ROLLOUT}.gpu_memory_utilization": 0.5,
        }
    return (
        found
        | cpu_precision(parameters)
        | {
            "data.train_batch_size": 4,
            f"{_ACTOR}.ppo_mini_batch_size": 4,
            # A reference policy costs a third of a step, and as much memory as the weights.
            f"{_ACTOR}.use_kl_loss": False,
            f"{_ACTOR}.use_torch_compile": False,
            f"{_ACTOR}.fsdp_config.use_torch_compile": False,
            f"{_REF}.fsdp_config.use_torch_compile": False,
            f"{_REF}.fsdp_config.param_offload": False,
            "actor_rollout_ref.model.enable_gradient_checkpointing": cpu_step_bytes(model, 2048) > 0.6 * ram_bytes(),
            f"{_ROLLOUT}.temperature": 1.0,
            f"{_ROLLOUT}.val_kwargs.temperature": 1.0,
            f"{_ROLLOUT}.val_kwargs.n": 4,
            f"{_ROLLOUT}.agent.num_workers": 1,
        }
    )


def lengths_of(
    opening: int, context: int, device: Device, given: Mapping[str, int], *, steps: int, guidance: int = 0
) -> dict[str, int]:
    """Return the token limits that follow from an environment's openings, by dotted key.

    Args:
        opening: tokens of the longest probed opening.
        context: tokens that the model was made for.
        given: limits that are set already; the others fit them.
        steps: maximum number of actions in an episode.
        guidance: tokens of injected experience.

    Raises:
        ConfigError: the context has no room for an opening and a reply.
    """
    prompt = given.get(PROMPT) or _round(1.25 * opening) + _round(guidance)
    reply = given.get(REPLY) or min(max(_round(opening / 8), 64), 4096)
    observation = given.get(OBSERVATION) or min(max(_round(opening / 2), 512), 4096)
    longest = given.get(CONTEXT) or min(context, max(_LONGEST[device], prompt + 2 * (reply + observation)))
    response = given.get(RESPONSE) or min(longest - prompt, steps * (reply + observation))
    if response < reply:
        raise ConfigError(
            f"the openings have up to {opening} tokens, so a context of {longest} tokens leaves {max(0, response)} for "
            f"a reply, which needs {reply}: take a model with a longer context, or set {PROMPT}, {REPLY} and {CONTEXT}"
        )
    chosen = (prompt, response, given.get(CONTEXT) or prompt + response, reply, observation)
    return {key: value for key, value in zip(LENGTHS, chosen, strict=True) if key not in given}


def _round(tokens: float) -> int:
    return int(-(-tokens // 64) * 64)


def ram_bytes(limits: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of this machine's memory, or of its container's if that has less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found = min(found, int((limits / name).read_text()))
    return found


def cpu_step_bytes(model: Model, tokens: int, *, checkpointed: bool = False) -> float:
    """Return the bytes of a training on a CPU at the peak of an update of so many tokens: float32 weights, gradients
    and Adam's moments, bfloat16 activations, logits (bfloat16 and float32, with gradients), and vLLM."""
    size = model.size
    layer = 2 * (size.hidden if checkpointed else 11 * size.hidden + 4 * size.intermediate)
    row = size.layers * layer + 10 * size.vocabulary
    return 16.0 * size.parameters + tokens * row + 2.0 * size.parameters + 2 * _GIB
