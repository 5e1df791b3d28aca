"""A folder that the launcher takes for a model and that nothing can load: tests of plans need no weights."""

from __future__ import annotations

import struct
from pathlib import Path


def bare_model(folder: Path) -> Path:
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    return folder
