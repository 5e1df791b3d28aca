"""Seeds derived from names, independent of the order of draws and of restarts: a draw's seed is a hash of the run's
seed (`data.seed`) and the draw's name."""

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
    """Return a seed in 0..2^63-1."""
    return int.from_bytes(digest(*name)[:8], "big") >> 1


class Draws:
    def __init__(self, seed: int, *name: str | int) -> None:
        self.run_seed = seed
        self._name = name
        self._asked: Counter[tuple[str | int, ...]] = Counter()

    def seed(self, *what: str | int) -> int:
        """Return the seed of a draw; repeating a draw gives another seed."""
        self._asked[what] += 1
        return derived(self.run_seed, *self._name, *what, self._asked[what])

    def anew(self) -> Draws:
        return Draws(self.run_seed, *self._name)


# Language models draw deep inside other work: every coroutine and task started in a `drawing` block reads the name from
# the context.
_CURRENT: ContextVar[Draws | None] = ContextVar("draws", default=None)


@contextmanager
def drawing(seed: int, *name: str | int) -> Iterator[Draws]:
    draws = Draws(seed, *name)
    token = _CURRENT.set(draws)
    try:
        yield draws
    finally:
        _CURRENT.reset(token)


@contextmanager
def drawing_again() -> Iterator[None]:
    """Start over with the same seeds in the block, for a retry."""
    outer = _CURRENT.get()
    token = _CURRENT.set(outer.anew() if outer is not None else None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def drawing_for(*name: str | int) -> Iterator[Draws | None]:
    """Use seeds of another name in the block, under the same run seed. Yields None outside `drawing`."""
    outer = _CURRENT.get()
    if outer is None:
        yield None
        return
    with drawing(outer.run_seed, *name) as draws:
        yield draws


def current() -> Draws | None:
    return _CURRENT.get()
