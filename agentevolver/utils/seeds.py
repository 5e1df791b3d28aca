"""Seeds derived from names: every draw is the same whatever the order of draws, and after any restart.

A run has one seed (`data.seed`). A draw has a name (step, task, rollout, call), and its seed is a hash of both. Roles
of language models draw deep inside of other work, so the name is a context variable: `drawing` sets it, `current` reads
it in every coroutine and task that was started there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


def digest(*name: str | int) -> bytes:
    """Return 16 bytes derived from a name, the same in every process, release and machine."""
    spelled = "".join(f"{type(part).__name__}:{len(str(part))}:{part};" for part in name)
    return hashlib.blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def derived(*name: str | int) -> int:
    """Return a seed in 0..2^63-1 derived from a name."""
    return int.from_bytes(digest(*name)[:8], "big") >> 1


class Draws:
    """The draws under one name, for one event loop."""

    def __init__(self, seed: int, *name: str | int) -> None:
        self.run_seed = seed
        self._name = name
        self._asked: Counter[tuple[str | int, ...]] = Counter()

    def seed(self, *what: str | int) -> int:
        """Return the seed of a draw; repeating a draw gives another seed."""
        self._asked[what] += 1
        return derived(self.run_seed, *self._name, *what, self._asked[what])

    def anew(self) -> Draws:
        """Return these draws before the first one."""
        return Draws(self.run_seed, *self._name)


_CURRENT: ContextVar[Draws | None] = ContextVar("draws", default=None)


@contextmanager
def drawing(seed: int, *name: str | int) -> Iterator[Draws]:
    """Set the name and seed of the draws in the block."""
    draws = Draws(seed, *name)
    token = _CURRENT.set(draws)
    try:
        yield draws
    finally:
        _CURRENT.reset(token)


@contextmanager
def drawing_again() -> Iterator[None]:
    """Repeat the draws made so far in the block, for a retry."""
    outer = _CURRENT.get()
    token = _CURRENT.set(outer.anew() if outer is not None else None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def drawing_for(*name: str | int) -> Iterator[Draws | None]:
    """Set further parts of the name in the block; yields None outside of `drawing`."""
    outer = _CURRENT.get()
    if outer is None:
        yield None
        return
    with drawing(outer.run_seed, *name) as draws:
        yield draws


def current() -> Draws | None:
    """Return the current draws, or None outside of `drawing`."""
    return _CURRENT.get()
