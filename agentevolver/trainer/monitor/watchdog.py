"""Watchdog: warns about a phase that takes far longer than usual and says what it waits for. It never ends anything."""

from __future__ import annotations

import functools
import logging
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentevolver.config.training import WatchdogSettings
from agentevolver.utils.inflight import Waiting, described, merged

logger = logging.getLogger(__name__)

# Durations of a phase that are remembered.
REMEMBERED = 16
CHECK_S = 5.0
ASK_TIMEOUT_S = 10.0
# Descriptions of what other phases than rollouts wait for.
WORKERS = "the policy's workers (the traceback of one that died is in Ray's logs)"
STARTING = "the policy to be loaded and vLLM to start (Ray's logs say more)"
WEIGHTS = "vLLM to take the weights"
DISK = "the checkpoint to be written"


Waits = Callable[[], str]


@dataclass(slots=True)
class _Phase:
    name: str
    began: float
    waits: Waits | None
    next_warning_s: float
    warned: bool = False


class Watchdog:
    """Watches the phase that was entered last. Thread-safe.

    `show` gets each warning, and None when the phase ends. `waits` describes what is waited for; it runs in the
    watchdog's thread and may take seconds.
    """

    def __init__(
        self,
        settings: WatchdogSettings,
        log: Path | None = None,
        show: Callable[[str | None], None] = lambda text: None,
        waits: Waits = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._log = log
        self._show = show
        self._waits = waits
        self._clock = clock
        self._lock = threading.Lock()
        self._phase: _Phase | None = None
        self._durations: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._warnings = 0
        self._told = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self.leave()
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=CHECK_S)

    def enter(self, name: str, waits: Waits | None = None) -> None:
        """Begin a phase; the previous one ends."""
        self.leave()
        with self._lock:
            self._phase = _Phase(name, self._clock(), waits, self._limit(name))

    def leave(self) -> None:
        """End the phase without a new one."""
        with self._lock:
            phase, self._phase = self._phase, None
            if phase is None:
                return
            seconds = self._clock() - phase.began
            self._durations[phase.name].append(seconds)
        if phase.warned:
            self._say(f"{phase.name} ended after {seconds:.0f} s")
            self._show(None)

    @contextmanager
    def phase(self, name: str, waits: Waits | None = None) -> Iterator[None]:
        """Watch a block as a phase. The interrupted phase continues afterwards, without the block's time."""
        with self._lock:
            before, self._phase = self._phase, None
        began = self._clock()
        self.enter(name, waits)
        try:
            yield
        finally:
            self.leave()
            if before is not None:
                with self._lock:
                    before.began += self._clock() - began
                    self._phase = before

    def check(self) -> str | None:
        """Return the warning that is due now, or None."""
        with self._lock:
            phase = self._phase
            if phase is None or (seconds := self._clock() - phase.began) < phase.next_warning_s:
                return None
            while phase.next_warning_s <= seconds:
                phase.next_warning_s *= 2
            phase.warned = True
            self._warnings += 1
            usual = self._usual(phase.name)
        waits = (phase.waits or self._waits)()
        text = f"{phase.name} takes {seconds:.0f} s by now" + (f" (usually {usual:.0f} s)" if usual is not None else "")
        text += f"; it waits for {waits}" if waits else ""
        with self._lock:
            if self._phase is not phase:  # it ended meanwhile
                return None
        self._say(text)
        self._show(text)
        return text

    def metrics(self) -> dict[str, float]:
        """Return the number of warnings since the last call."""
        with self._lock:
            new, self._told = self._warnings - self._told, self._warnings
        return {"watchdog/warnings": float(new)}

    def _usual(self, name: str) -> float | None:
        durations = self._durations[name]
        return statistics.median(durations) if durations else None

    def _limit(self, name: str) -> float:
        # Due at this time, and again after twice, four times ... as long.
        return max(self._settings.floor_s, self._settings.factor * (self._usual(name) or 0.0))

    def _say(self, text: str) -> None:
        logger.warning("%s", text)
        if self._log is None:
            return
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        except OSError as error:
            logger.warning("%s cannot be written any more: %s", self._log, error.strerror)

    def _watch(self) -> None:
        while not self._stop.wait(min(CHECK_S, self._settings.floor_s / 4)):
            try:
                self.check()
            except OSError as error:  # status.json cannot be written
                logger.warning("the warning could not be shown: %s", error)


def described_waits(workers: Sequence[Any], others: Sequence[Any] = ()) -> str:
    """Ask Ray actors through their method `waiting` what they wait for, and return it as text."""
    # Imported here: the watchdog of a run without training needs no Ray.
    import ray
    from ray.exceptions import RayError

    asked = [actor.waiting.remote() for actor in (*workers, *others)]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=ASK_TIMEOUT_S) if asked else ([], [])
    answered: dict[Any, Waiting] = {}
    for reference in ready:
        try:
            answered[reference] = ray.get(reference)
        except RayError:  # the process is gone
            continue
    silent = sum(reference not in answered for reference in asked[: len(workers)])
    parts = [described(merged(answered.values()))]
    if silent:
        parts.append(f"{silent} of {len(workers)} rollout workers, which do not answer")
    return ", ".join(filter(None, parts))


def watched(name: str, waits: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a trainer's method in a phase of its `_watchdog`."""

    @functools.wraps(method)
    def inner(self: Any, *arguments: Any, **options: Any) -> Any:
        with self._watchdog.phase(name, lambda: waits):
            return method(self, *arguments, **options)

    return inner
