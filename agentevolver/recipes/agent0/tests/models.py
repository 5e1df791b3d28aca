"""Hugging Face folders of a model that is too small to say anything."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 16}


def write_model(folder: Path, rows: int = 4, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True, **SIZES}
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    save_file({"model.embed_tokens.weight": torch.zeros(rows, 8)}, folder / "model.safetensors")
    return folder
