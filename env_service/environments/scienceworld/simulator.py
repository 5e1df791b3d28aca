"""The simulator of ScienceWorld: one Java process for each process that hosts instances, with a game for each.

The package's wrapper starts Java for every instance (9 s, gigabytes of heap). Games share no state, so one process
serves many; calls go one at a time. Java ends when its standard input closes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import shutil
import threading
from functools import cache
from pathlib import Path
from typing import Any

from env_service.own_venv import is_importable, use_site

SETUP = "bash env_service/environments/scienceworld/setup.sh"
VERSION = "1.2.3"
_SITE = "SCIENCEWORLD_SITE"
HEAP_VARIABLE = "SCIENCEWORLD_HEAP_MB"
_HEAP_MB = 1024
_GAME_MB = 16
"""A game was measured to hold 10 MB."""


class ScienceworldNotInstalled(RuntimeError):
    """The package scienceworld or a Java runtime is missing."""


def splits() -> dict[str, tuple[int, int, int]]:
    return {name: (ends[0], ends[1], ends[2]) for name, ends in _splits().items()}


@cache
def _splits() -> dict[str, list[int]]:
    read: dict[str, list[int]] = json.loads(Path(__file__).with_name("splits.json").read_text(encoding="utf-8"))
    return read


def installed() -> bool:
    use_site("scienceworld", _SITE, "scienceworld")
    return is_importable("scienceworld") and is_importable("py4j") and shutil.which("java") is not None


class Simulator:
    _one: Simulator | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        """Start Java; raises ScienceworldNotInstalled, RuntimeError for an invalid heap size."""
        java = shutil.which("java")
        if java is None:
            raise ScienceworldNotInstalled(
                "scienceworld needs a Java runtime (8 or later), and there is no `java` on the path: "
                "apt install default-jre-headless"
            )
        use_site("scienceworld", _SITE, "scienceworld")
        try:
            constants = importlib.import_module("scienceworld.constants")
            gateway = importlib.import_module("py4j.java_gateway")
        except ImportError as error:
            raise ScienceworldNotInstalled(
                f"the scienceworld environment could not import its package ({error}). Run `{SETUP}`, or set "
                f"{_SITE} to a site-packages folder that holds scienceworld {VERSION} and py4j."
            ) from error
        heap = os.environ.get(HEAP_VARIABLE, str(_HEAP_MB))
        if not heap.isdigit() or int(heap) < 128:
            raise RuntimeError(f"{HEAP_VARIABLE}={heap!r} must be a whole number of MiB, 128 or more")
        self.most = int(heap) // _GAME_MB
        self._lock = threading.Lock()
        self._games = 0
        # One thread collects garbage and code is compiled once: many hosts share the cores.
        options = [f"-Xmx{heap}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
        port, token, self.process = gateway.launch_gateway(
            classpath=constants.JAR_PATH,
            cwd=constants.BASEPATH,
            java_path=java,
            javaopts=options,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        # Objects that outlive the Java process say so, each with a traceback, when they are collected.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        token = token.decode() if isinstance(token, bytes) else token
        parameters = gateway.GatewayParameters(port=port, auth_token=token, auto_field=True)
        self._gateway = gateway.JavaGateway(gateway_parameters=parameters, java_process=self.process)

    @classmethod
    def shared(cls) -> Simulator:
        with cls._making:
            if cls._one is not None and cls._one.process.poll() is not None:
                cls._one._close_pipes()
                cls._one = None
            if cls._one is None:
                cls._one = cls()
            return cls._one

    def game(self, task: str, variation: int, easy: str, *, gold: bool = False) -> ScienceWorldGame:
        """Return a new game; raises RuntimeError if the Java process is full."""
        with self._lock:
            if self._games >= self.most:
                raise RuntimeError(
                    f"the Java process holds {self._games} games, as many as its heap takes: raise {HEAP_VARIABLE} "
                    "(16 MiB a game), or serve with more --shared-hosts"
                )
            there = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
            there.load(task, variation, easy, gold)
            self._games += 1
        return ScienceWorldGame(self, there)

    def stop(self) -> None:
        """End the Java process; games that are open are lost."""
        with self._making:
            if Simulator._one is self:
                Simulator._one = None
        self._gateway.shutdown()
        self.process.stdin.close()  # which it reads, and then ends
        self.process.wait(10)
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _release(self, there: Any) -> None:
        with self._lock:
            self._games -= 1
            if self.process.poll() is None:
                self._gateway.detach(there)


class ScienceWorldGame:
    def __init__(self, simulator: Simulator, there: Any) -> None:
        self._simulator = simulator
        self._there: Any = there

    def _ask(self, name: str, *arguments: str) -> Any:
        if self._simulator.process.poll() is not None:
            raise RuntimeError("the Java process of ScienceWorld has ended; create a new instance")
        with self._simulator._lock:
            return getattr(self._there, name)(*arguments)

    def step(self, command: str) -> str:
        return str(self._ask("step", command)).strip()

    def score(self) -> float:
        """Return the simulator's score: 0 to 1, or -1 once the task has failed."""
        return float(self._ask("getScore"))

    def is_completed(self) -> bool:
        return bool(self._ask("getCompleted"))

    def description(self) -> str:
        return " ".join(str(self._ask("getTaskDescription")).split())

    def look(self) -> str:
        """Return what a look around shows; takes no time in the game."""
        return str(self._ask("freeActionLook")).strip()

    def inventory(self) -> str:
        return str(self._ask("freeActionInventory")).strip()

    def progress(self) -> str:
        return str(self._ask("getGoalProgressStr"))

    def valid_actions(self) -> list[str]:
        return sorted(map(str, self._ask("getValidActionObjectCombinations")))

    def gold(self) -> list[str]:
        """Return the commands that solve a game created with `gold`."""
        return list(map(str, self._ask("getGoldActionSequence")))

    def close(self) -> None:
        if self._there is not None:
            self._simulator._release(self._there)
            self._there = None
