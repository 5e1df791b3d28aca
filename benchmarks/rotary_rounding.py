"""What rotary frequencies rounded to bf16 do to a model of random weights, layer by layer on a CPU.

    python -m benchmarks.rotary_rounding --shape 7B --tokens 1500 --layers 8

One sequence goes through Qwen2's layers in float32, in bf16, and in bf16 with the frequencies as verl's cast of the
whole model leaves them; one layer is in memory at a time. Printed is the cosine between what the output matrix would
see and the float32 one's, in tenths of the sequence.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding

from agentevolver.launcher.memory import Decoder
from benchmarks.random_policy import SHAPES, config_of

STD = 0.02
PARTS = 10


def cosines(shape: Decoder, layers: int, tokens: int) -> dict[str, torch.Tensor]:
    """Return of each way to compute the cosine [tokens] to float32's hidden states after `layers` layers."""
    torch.manual_seed(0)
    config = config_of(shape, attn_implementation="sdpa")
    exact = Qwen2RotaryEmbedding(config)
    rounded = Qwen2RotaryEmbedding(config).to(torch.bfloat16)
    ways = {
        "float32": (torch.float32, exact),
        "bf16": (torch.bfloat16, exact),
        "bf16, frequencies too": (torch.bfloat16, rounded),
    }
    positions = torch.arange(tokens)[None]
    start = (torch.randn(1, tokens, shape.hidden) * STD).bfloat16()
    states = {name: start.to(dtype) for name, (dtype, _) in ways.items()}
    with torch.no_grad():
        for _ in range(layers):
            layer = Qwen2DecoderLayer(config, 0).bfloat16()
            for name, parameter in layer.named_parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0.0, STD)
                elif name.endswith("bias"):
                    parameter.zero_()
            for name, (dtype, rotary) in sorted(ways.items(), key=lambda item: item[1][0] == torch.float32):
                state = states[name]
                states[name] = layer.to(dtype)(
                    state, position_ids=positions, position_embeddings=rotary(state, positions), attention_mask=None
                )
    told = states.pop("float32")[0]
    return {name: torch.cosine_similarity(state[0].float(), told, dim=-1) for name, state in states.items()}


def main() -> None:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rotary_rounding", description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="1.5B")
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--layers", type=int, help="by default all of the shape's")
    args = parser.parse_args()
    layers = args.layers or SHAPES[args.shape].layers
    found = cosines(SHAPES[args.shape], layers, args.tokens)
    table = Table(title=f"{args.shape}, {layers} layers, {args.tokens} tokens: cosine to float32's hidden states")
    for name in ("computed in", "mean", *(f"{(i + 1) * 100 // PARTS} %" for i in range(PARTS))):
        table.add_column(name)
    for name, cosine in found.items():
        parts = [f"{part.mean().item():.4f}" for part in cosine.chunk(PARTS)]
        table.add_row(name, f"{cosine.mean().item():.4f}", *parts)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
