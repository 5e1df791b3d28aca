"""Machines that are none: a node is a set of Linux namespaces with an init of its own. It has its own processes,
network address, host name, /tmp, /dev/shm and state folder of the checkout; clocks of its own as far as the kernel has
them (monotonic and since boot: there is no namespace of the time of day). The checkout and one folder are the disk that
all nodes see.

A node's power goes by cutting its cable and killing its init: whoever talks to it hears nothing more, not even goodbye.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "10.77.0."
CABLES = itertools.count()
KINDS = ("--fork", "--pid", "--mount-proc", "--mount", "--uts", "--ipc", "--net", "--time")
# Waits for what its children leave behind, and ends with SIGTERM.
INIT = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.1)
"""


def why_not() -> str | None:
    """Return why nodes cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root alone"
    tried = subprocess.run(
        ["unshare", *KINDS, "sh", "-c", "ip link add switch type bridge"],
        capture_output=True,
        text=True,
    )
    return None if tried.returncode == 0 else f"namespaces cannot be made here: {tried.stderr.strip()}"


class Node:
    """A machine.

    Args:
        number: its address is 10.77.0.<number>. The first one has the switch that the others' cables go to.
        name: its host name.
        shared: a folder that all nodes see as it is.
        switch: the node with the switch; None: this one.
        ahead_s: how far its clocks are ahead of the real ones.
    """

    def __init__(self, number: int, name: str, shared: Path, switch: Node | None = None, ahead_s: int = 0) -> None:
        self.address, self.name, self._switch = f"{PREFIX}{number}", name, switch
        # Of one plug-in alone: the kernel takes its time over namespaces that nobody is in.
        self._cable = f"ae{os.getpid() % 10**6}n{next(CABLES)}"
        state = ROOT / ".agentevolver"
        state.mkdir(exist_ok=True)
        kept = {"/mnt/root": ROOT, "/mnt/shared": shared}
        mounts = [
            "mount -t tmpfs tmpfs /mnt",
            *(f"mkdir {place} && mount --bind {shlex.quote(str(path))} {place}" for place, path in kept.items()),
            "mount -t tmpfs tmpfs /tmp",
            "mount -t tmpfs tmpfs /dev/shm",
            # A checkout or a folder below /tmp is seen again.
            *(
                f"mkdir -p {shlex.quote(str(path))} && mount --bind {place} {shlex.quote(str(path))}"
                for place, path in kept.items()
                if path.is_relative_to("/tmp")
            ),
            f"mount -t tmpfs tmpfs {shlex.quote(str(state))}",
        ]
        script = " && ".join(["set -e", f"hostname {name}", *mounts, f"exec {sys.executable} -c {shlex.quote(INIT)}"])
        clocks = (f"--monotonic={ahead_s}", f"--boottime={ahead_s}")
        self._outer = subprocess.Popen(["unshare", *KINDS, *clocks, "sh", "-c", script], stdin=subprocess.DEVNULL)
        self.pid = self._init_pid()
        self._connect()

    def _init_pid(self) -> int:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
            if children and b"ChildProcessError" in Path(f"/proc/{children[0]}/cmdline").read_bytes():
                return int(children[0])
            assert self._outer.poll() is None, "the namespaces of a node could not be made"
            time.sleep(0.05)
        raise AssertionError("the namespaces of a node could not be made in time")

    def _connect(self) -> None:
        self.run("ip link set lo up")
        if self._switch is None:
            self.run("ip link add switch type bridge && ip link set switch up")
            self.run(f"ip address add {self.address}/24 dev switch")
            return
        subprocess.run(shlex.split(f"ip link add name {self._cable} type veth peer name {self._cable}b"), check=True)
        subprocess.run(shlex.split(f"ip link set {self._cable} netns {self._switch.pid}"), check=True)
        subprocess.run(shlex.split(f"ip link set {self._cable}b netns {self.pid}"), check=True)
        self._switch.run(f"ip link set {self._cable} master switch && ip link set {self._cable} up")
        self.run(f"ip link set {self._cable}b up && ip address add {self.address}/24 dev {self._cable}b")

    def command(self, command: str | Sequence[str]) -> list[str]:
        """Return a command as it is run in this node from outside."""
        inner = ["sh", "-c", command] if isinstance(command, str) else list(command)
        return ["nsenter", "--all", f"--target={self.pid}", f"--wd={ROOT}", *inner]

    def run(self, command: str | Sequence[str], env: Mapping[str, str] | None = None) -> str:
        """Run a command to its end and return what it printed; it has to succeed."""
        done = subprocess.run(
            self.command(command), env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{self.name}: {command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command with its output in a file."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.command(command), env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def cut(self) -> None:
        """Pull the cable."""
        assert self._switch is not None
        self._switch.run(f"ip link set {self._cable} down")

    def kill(self) -> None:
        """Turn the power off: every process is gone at once. Does nothing where it is off."""
        if self._outer.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._outer.wait(20)
        if self._switch is not None and self._switch._outer.poll() is None:
            self._switch.run(f"ip link delete {self._cable} 2> /dev/null || true")
