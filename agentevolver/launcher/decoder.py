"""The size of a decoder-only language model, from its config.json alone: parameters, FLOPs, bytes of its cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Decoder:
    """Numbers of elements; biases and norms, a thousandth of the whole, are left out."""

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
    def of(cls, config: Mapping[str, Any]) -> Decoder:
        """Read a config.json as transformers writes it; of a model that sees and hears, its language model.

        Raises:
            KeyError: it is not that of such a model.
        """
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
        """Parameters of one layer, all its experts included."""
        width = self.experts * self.expert_intermediate if self.experts else self.intermediate
        return self._attention + 3 * self.hidden * width + self.hidden * self.experts

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def matmul_parameters(self) -> int:
        """Parameters that multiply each token of a dense model: the look-up of the input's embedding is none."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden

    def lora_parameters(self, rank: int) -> int:
        """Parameters of adapters on all of a dense layer's linear maps."""
        size = self.head_size or self.hidden // self.heads
        attention = 2 * (self.hidden + self.heads * size) + 2 * (self.hidden + self.kv_heads * size)
        return self.layers * rank * (attention + 3 * (self.hidden + self.intermediate))

    def forward_flops(self, tokens: float, length: float) -> float:
        """FLOPs of a forward pass over `tokens` in sequences of `length`: 2 a parameter and token, and causal
        attention's two products, each 2 x heads x head size for the length / 2 tokens seen on average (PaLM, appendix
        B, halved for causality)."""
        width = self.heads * (self.head_size or self.hidden // self.heads)
        return tokens * (2 * self.matmul_parameters + 2 * self.layers * width * length)

    def kv_bytes(self, bytes_of_element: int = 2) -> int:
        """Bytes that one token takes in the cache of keys and values."""
        return 2 * self.layers * self.kv_heads * (self.head_size or self.hidden // self.heads) * bytes_of_element
