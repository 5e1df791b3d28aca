"""A policy of a real model's shape with random weights, and the seed policy's tokenizer: for measuring where nothing
can be downloaded.

    python -m benchmarks.random_policy --shape 1.5B --out DIR [--device cuda]

The tokenizer's vocabulary is filled up to the shape's with words that nobody writes. A random policy draws nearly every
token alike, so that calls run to their full length. The shapes are those of Qwen2.5; `tiny` is for a test on a CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentevolver.config.model import DecoderSize

if TYPE_CHECKING:
    from transformers import Qwen2Config

QWEN_VOCABULARY = 151_936
COPIED = ("chat_template.jinja", "tokenizer_config.json", "generation_config.json")


SHAPES = {
    "tiny": DecoderSize(
        128, 256, 2, 4, 2, 0, tied=True
    ),  # heads of 32, the least that vLLM has on a CPU; with the tokenizer's own vocabulary
    "0.5B": DecoderSize(896, 4864, 24, 14, 2, QWEN_VOCABULARY, tied=True),
    "1.5B": DecoderSize(1536, 8960, 28, 12, 2, QWEN_VOCABULARY, tied=True),
    "7B": DecoderSize(3584, 18944, 28, 28, 4, QWEN_VOCABULARY, tied=False),
}


def write_tokenizer(out: Path, vocabulary: int) -> dict[str, Any]:
    """Write the seed policy's tokenizer with at least `vocabulary` entries; returns its special tokens' ids as
    Qwen2Config names them, and `vocab_size`."""
    from agentevolver.recipes.offline.seed import seed_policy_path

    source = seed_policy_path()
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    entries: dict[str, int] = tokenizer["model"]["vocab"]
    used = set(entries.values()) | {token["id"] for token in tokenizer["added_tokens"]}
    size = max(vocabulary, max(used) + 1)
    words = ("".join(letters) for letters in itertools.product(string.ascii_uppercase, repeat=4))
    entries.update(
        zip((word for word in words if word not in entries), (i for i in range(size) if i not in used), strict=False)
    )
    (out / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    for name in COPIED:
        shutil.copy(source / name, out / name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    return {"vocab_size": size, **{name: config[name] for name in ("eos_token_id", "pad_token_id", "bos_token_id")}}


def config_of(shape: DecoderSize, **more: Any) -> Qwen2Config:
    """Return transformers' configuration of a shape of Qwen2.5's, with other keys of it."""
    from transformers import Qwen2Config

    return Qwen2Config(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=32_768,
        rope_theta=1e6,
        tie_word_embeddings=shape.tied,
        **more,
    )


def write_policy(shape: DecoderSize, out: Path, device: str, dtype: str, seed: int = 0) -> None:
    """Write a folder that `from_pretrained` takes."""
    import torch
    from transformers import AutoModelForCausalLM

    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    config = config_of(shape, **write_tokenizer(out, shape.vocabulary), dtype=dtype)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(out)


def main() -> None:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_policy", description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--device", default="cpu", help="where the weights are drawn")
    args = parser.parse_args()
    write_policy(SHAPES[args.shape], args.out, args.device, "float32" if args.device == "cpu" else "bfloat16")


if __name__ == "__main__":
    main()
