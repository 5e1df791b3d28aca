"""The package reasoning-gym, installed in a folder of its own and run only in a sandbox.

Its scorers evaluate an agent's text, and one generator runs code of a data set. An answer on which the sandbox hangs is
wrong. `screen` refuses answers that are code; a sandbox that evaluated an answer is discarded.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from env_service.environments.python_tool.sandbox.host import RunResult, Sandbox, SandboxLimits
from env_service.environments.reasoning_gym.screen import EVALUATED, is_harmless

SETUP = "bash env_service/environments/reasoning_gym/setup.sh"
ROOT_VARIABLE = "REASONING_GYM_ROOT"
_DEFAULT_ROOT = Path(__file__).resolve().parents[3] / ".venvs" / "reasoning_gym"
_GENERATORS = Path(__file__).with_name("generators.py")
# Its imports alone take two seconds of an idle core, and a large puzzle one more.
LIMITS = SandboxLimits(wall_s=30.0, cpu_s=24 * 3600, memory_mb=4096, output_bytes=1024 * 1024)


class NotInstalled(RuntimeError):
    """The package is missing; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class Item:
    """A question and a right answer; None if the package gives none."""

    question: str
    answer: str | None


class Library:
    """The generators; safe for several threads, which take turns.

    Args:
        root: the folder that `setup.sh` fills.
        limits: of the sandbox; a verdict that takes longer is a wrong answer's.
    """

    _shared: ClassVar[Library | None] = None
    _sharing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, root: Path, limits: SandboxLimits = LIMITS) -> None:
        if not (root / "reasoning_gym" / "__init__.py").is_file():
            raise NotInstalled(
                f"reasoning-gym is not installed: there is no {root / 'reasoning_gym'}. Run `{SETUP}`, or set "
                f"{ROOT_VARIABLE} to the folder that it filled"
            )
        self._packages = tuple(str(path.resolve()) for path in sorted(root.iterdir()) if path.name != "bin")
        self._limits = limits
        self._lock = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._levels: dict[str, list[int]] | None = None
        self.item = lru_cache(maxsize=4096)(self._item)

    @classmethod
    def shared(cls) -> Library:
        """Return this process's library; raises NotInstalled."""
        with cls._sharing:
            if cls._shared is None:
                cls._shared = cls(root_folder())
            return cls._shared

    @property
    def levels(self) -> Mapping[str, list[int]]:
        with self._lock:
            if self._levels is None:
                self._levels = self._answered("catalogue()")
            return self._levels

    def _item(self, name: str, level: int, seed: int) -> Item:
        """Return a task's item; raises RuntimeError where the package fails to make it."""
        with self._lock:
            return Item(**self._answered(f"item({name!r}, {level}, {seed})"))

    def verdict(self, name: str, level: int, seed: int, answer: str) -> float:
        """Return the score of an answer in 0..1; 1 is right, less is partial credit."""
        known = self.item(name, level, seed).answer
        if known is not None and answer.strip() == known.strip():
            return 1.0
        return self.scored(name, level, seed, answer) if is_harmless(name, answer) else 0.0

    def scored(self, name: str, level: int, seed: int, answer: str) -> float:
        """Return the score of a screened answer; see `verdict`."""
        call = f"verdict({name!r}, {level}, {seed}, {answer!r})"
        with self._lock:
            try:
                return float(self._answered(call))
            except _Ended:  # it hangs, or takes all memory there is: whoever wrote it gets nothing for that
                return 0.0
            finally:
                if name in EVALUATED:
                    self._close()

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()

    def _answered(self, call: str) -> Any:
        """Return the result of a call of `generators`; raises `_Ended` if the sandbox died, RuntimeError if the call
        failed."""
        if self._sandbox is None:
            self._sandbox = Sandbox(self._limits, self._packages)
            begun = self._sandbox.run(_GENERATORS.read_text(encoding="utf-8"))
            if begun.status != "ok":
                self._close()
                raise RuntimeError(f"reasoning-gym does not start ({begun.status}): {begun.output[-400:]}")
        nonce = secrets.token_hex(8)
        result = self._sandbox.run(f"said = json.dumps({call})\nprint()\nprint({nonce!r}, said)")
        if not result.alive:
            self._close()
            raise _Ended(f"reasoning-gym ended in {call[:80]}: {result.status}")
        return _told(result, nonce, call)


def root_folder() -> Path:
    return Path(os.environ.get(ROOT_VARIABLE) or _DEFAULT_ROOT)


class _Ended(RuntimeError):
    """The sandbox did not survive a call."""


def _told(result: RunResult, nonce: str, call: str) -> Any:
    lines = [line for line in result.output.splitlines() if line.startswith(nonce)]
    if result.status != "ok" or not lines:
        raise RuntimeError(f"reasoning-gym failed in {call[:80]}: {result.output[-400:]}")
    return json.loads(lines[-1].removeprefix(nonce))
