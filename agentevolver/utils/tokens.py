"""Encode and decode by the Rust tokenizer behind a Hugging Face one: same ids and texts, without the Python
overhead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# If a class overrides one of these, its own methods are called.
_ENCODING = ("__call__", "encode", "_encode_plus", "_convert_encoding", "set_truncation_and_padding")
_DECODING = ("decode", "_decode", "clean_up_tokenization")


def encoder_of(tokenizer: Any) -> Callable[[str], list[int]]:
    """Return a function from text to ids, without special tokens."""
    if not _is_plain(tokenizer, _ENCODING) or tokenizer.split_special_tokens:
        return lambda text: list(tokenizer.encode(text, add_special_tokens=False))
    backend = tokenizer.backend_tokenizer

    def encode(text: str) -> list[int]:
        if backend.truncation is not None or backend.padding is not None or backend.encode_special_tokens:
            # Left behind by another call; the tokenizer's own method resets the backend.
            return list(tokenizer.encode(text, add_special_tokens=False))
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    return encode


def decoder_of(tokenizer: Any, *, clean_up: bool = True) -> Callable[[Sequence[int], bool], str]:
    """Return a function (ids, skip special tokens) -> text. `clean_up` removes spaces before punctuation if the
    tokenizer does."""
    cleans = hasattr(tokenizer, "clean_up_tokenization_spaces") and tokenizer.clean_up_tokenization_spaces
    if not _is_plain(tokenizer, _DECODING) or (cleans and clean_up):
        options = {"clean_up_tokenization_spaces": False} if cleans and not clean_up else {}
        return lambda ids, skip: str(tokenizer.decode(ids, skip_special_tokens=skip, **options))
    backend = tokenizer.backend_tokenizer

    def decode(ids: Sequence[int], skip: bool) -> str:
        text: str = backend.decode(ids, skip_special_tokens=skip)
        return text

    return decode


def _is_plain(tokenizer: Any, names: Sequence[str]) -> bool:
    if not any(kind.__module__.startswith("transformers.") for kind in type(tokenizer).__mro__):
        return False
    from transformers import PreTrainedTokenizerFast as Fast

    # A subclass that overrides one of the methods would give other ids or texts than the backend.
    return isinstance(tokenizer, Fast) and not any(
        name in vars(tokenizer) or getattr(type(tokenizer), name) is not getattr(Fast, name) for name in names
    )
