"""What one interpreter may use. Every number is enforced by the kernel or by the host side, none by the interpreter
itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Bounds of one interpreter; MB means 2**20 bytes."""

    wall_s: float = 10.0
    """Seconds of wall-clock time for one piece of code; the host ends the interpreter after them."""
    cpu_s: int = 120
    """Seconds of processor time over the interpreter's whole life (RLIMIT_CPU)."""
    memory_mb: int = 1024
    """Address space of the interpreter, its only process (RLIMIT_AS)."""
    scratch_mb: int = 32
    """Size of the scratch folder, a tmpfs of its own."""
    file_mb: int = 16
    """Size of one file (RLIMIT_FSIZE)."""
    open_files: int = 64
    """Open file descriptors (RLIMIT_NOFILE)."""
    threads: int = 32
    """Threads; further processes are refused altogether."""
    output_bytes: int = 4096
    """Bytes of output (UTF-8) that are kept of one piece of code: the first quarter and the last three quarters of
    them."""
    flood_mb: int = 64
    """Output of one piece of code after which the interpreter is ended."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"limit `{field.name}` must be positive, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the limits as plain data, for the launcher and for `get_info`."""
        return asdict(self)
