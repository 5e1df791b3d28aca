"""System calls that Python 3.11 does not wrap, through ctypes. Failures raise `SandboxSetupError` with step and
errno."""

from __future__ import annotations

import ctypes
import errno
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LINUX_CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


class SandboxSetupError(RuntimeError):
    """A layer of the sandbox failed; no code was run."""


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _check(result: int, step: str) -> None:
    if result == -1:
        code = ctypes.get_errno()
        raise SandboxSetupError(f"{step}: {errno.errorcode.get(code, str(code))} ({os.strerror(code)})")


def machine() -> str:
    """Return the architecture; raise SandboxSetupError if it has no table of system calls here."""
    name = platform.machine()
    if name not in _SYS_PIVOT_ROOT:
        raise SandboxSetupError(
            f"no system-call table for machine {name!r}; known: {', '.join(sorted(_SYS_PIVOT_ROOT))}"
        )
    return name


def unshare(flags: int) -> None:
    _check(libc.unshare(flags), "unshare namespaces")


def mount(source: str, target: str, fstype: str | None, flags: int, data: str = "") -> None:
    """mount(2)."""
    kind = fstype.encode() if fstype else None
    _check(
        libc.mount(os.fsencode(source), os.fsencode(target), kind, ctypes.c_ulong(flags), data.encode()),
        f"mount {target}",
    )


def lock_mount(target: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes (read-only, no devices, no set-uid) to a mount, if `recursive` also to those below."""
    attr = _MountAttr(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    result = libc.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, ctypes.byref(attr), ctypes.sizeof(attr)
    )
    _check(result, f"mount_setattr {target}")


def pivot_into(new_root: str) -> None:
    """Make `new_root` the root and detach the old root."""
    os.chdir(new_root)
    _check(libc.syscall(_SYS_PIVOT_ROOT[machine()], b".", b"."), "pivot_root")
    _check(libc.umount2(b".", MNT_DETACH), "detach the old root")
    os.chdir("/")


def prctl(option: int, value: int = 0, extra: int = 0) -> int:
    """prctl(2) with integer arguments; returns its non-negative result."""
    zero = ctypes.c_ulong(0)
    result: int = libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(extra), zero, zero)
    _check(result, f"prctl {option}")
    return result


def set_hostname(name: str) -> None:
    _check(libc.sethostname(name.encode(), len(name)), "sethostname")


def drop_bounding_set() -> None:
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_READ, ctypes.c_ulong(capability), 0, 0, 0) == 1:
            prctl(PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = _CapHeader(_LINUX_CAPABILITY_VERSION_3, 0)
    _check(libc.capset(ctypes.byref(header), ctypes.byref((_CapData * 2)())), "capset")


def effective_capabilities() -> int:
    header = _CapHeader(_LINUX_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)()
    _check(libc.capget(ctypes.byref(header), ctypes.byref(data)), "capget")
    low, high = (int(part.effective) | int(part.permitted) for part in data)
    return low | high << 32
