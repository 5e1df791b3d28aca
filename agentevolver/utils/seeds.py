"""Seeds that follow from what is drawn for, not from when:
whoever draws first, after whatever restart, each draw is the same.

A run has one seed (`data.seed`). Every draw has a name (the step, the task, the rollout, the call), and its seed is a
hash of both. Language models of roles are asked deep inside of what is being done, so that name is a context: `drawing`
sets it, and `current` finds it, in whatever coroutine or task was started there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


def digest(*name: str | int) -> bytes:
    """Return 16 bytes that follow from a name alone: the same in every process, release and machine."""
    spelled = "".join(f"{type(part).__name__}:{len(str(part))}:{part};" for part in name)
    return hashlib.blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def derived(*name: str | int) -> int:
    """Return a seed in 0..2^63-1 that follows from a name alone."""
    return int.from_bytes(digest(*name)[:8], "big") >> 1


class Draws:
    """The draws of one thing that is being done, for one event loop.

    Args:
        seed: the run's.
        name: of what is being done.
    """

    def __init__(self, seed: int, *name: str | int) -> None:
        self.run_seed = seed
        self._name = name
        self._asked: Counter[tuple[str | int, ...]] = Counter()

    def seed(self, *what: str | int) -> int:
        """Return the seed of a draw; what is drawn again gets another."""
        self._asked[what] += 1
        return derived(self.run_seed, *self._name, *what, self._asked[what])

    def anew(self) -> Draws:
        """Return these draws as they were before the first."""
        return Draws(self.run_seed, *self._name)


_CURRENT: ContextVar[Draws | None] = ContextVar("draws", default=None)


@contextmanager
def drawing(seed: int, *name: str | int) -> Iterator[Draws]:
    """Give what is done in the block draws of its own."""
    draws = Draws(seed, *name)
    token = _CURRENT.set(draws)
    try:
        yield draws
    finally:
        _CURRENT.reset(token)


@contextmanager
def drawing_again() -> Iterator[None]:
    """Let the block draw what was drawn so far once more: for another try at the same thing."""
    outer = _CURRENT.get()
    token = _CURRENT.set(outer.anew() if outer is not None else None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def drawing_for(*name: str | int) -> Iterator[Draws | None]:
    """Give a part of what is being done draws of its own, whoever it is done for; None where nobody draws by name."""
    outer = _CURRENT.get()
    if outer is None:
        yield None
        return
    with drawing(outer.run_seed, *name) as draws:
        yield draws


def current() -> Draws | None:
    """Return the draws of what is being done, None where nobody draws by name."""
    return _CURRENT.get()
