"""A random Qwen2 of a few hundred thousand weights, with room for long prompts and Qwen2.5's chat template. Tests use
it where any Hugging Face folder will do.

    python -m tests.tiny_model FOLDER    # write one
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests.context_manager.chat_templates import QWEN25

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 4096
LONGEST = 32_768


def build(folder: Path, texts: Iterable[str] = (), **changed: Any) -> Path:
    """Write model and tokenizer to a folder that `from_pretrained` reads, and return the folder.

    Args:
        texts: what the tokenizer is trained on. Its tokens are as long as a real one's on such text, and single bytes
            on any other.
        changed: fields of the model's configuration.
    """
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = VOCABULARY - len(SPECIAL)
    inner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=room, initial_alphabet=alphabet, show_progress=False)
    )
    inner.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=QWEN25
    )
    tokenizer.save_pretrained(folder)
    fields = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": LONGEST,
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    config = Qwen2Config(**fields | changed)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    return folder


@functools.cache
def _made() -> tempfile.TemporaryDirectory[str]:
    made = tempfile.TemporaryDirectory(prefix="tiny_model_")
    build(Path(made.name))
    return made


def tiny_model_path() -> Path:
    """Return a folder with such a model, which lasts as long as this process. Do not write to it."""
    return Path(_made().name)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
