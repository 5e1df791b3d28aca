"""The loop inside the sandbox: read code, run it in one lasting namespace, report how it ended.

Output goes to file descriptors 1 and 2; the control descriptor carries lengths, code and one status line. The code can
reach this whole module, so the host trusts nothing that it sends.
"""

from __future__ import annotations

import ast
import builtins
import io
import linecache
import os
import sys
import traceback
import types
from typing import Any

HEADER = 8
"""Bytes of the little-endian length before each piece of code."""

_TRACE_HEAD = 6
_TRACE_TAIL = 14


def _read_exactly(fd: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(fd, count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _fresh_stream(fd: int) -> io.TextIOWrapper:
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue


def _shortened_traceback(error: BaseException, filename: str) -> str:
    """Format an exception from the agent's first frame on, without the middle of a long trace."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != filename:
        trace = trace.tb_next
    try:
        lines = "".join(traceback.format_exception(type(error), error, trace)).splitlines()
    except BaseException:  # formatting may run out of memory again, or call into the agent's code
        return type(error).__name__
    left_out = len(lines) - _TRACE_HEAD - _TRACE_TAIL
    if left_out > 1:
        lines = [*lines[:_TRACE_HEAD], f"  ... {left_out} lines left out ...", *lines[-_TRACE_TAIL:]]
    return "\n".join(lines)


def _execute(source: str, filename: str, namespace: dict[str, Any]) -> None:
    """Run the statements; print the value of a last expression, as an interactive session does."""
    linecache.cache[filename] = (len(source), None, [line + "\n" for line in source.splitlines()], filename)
    tree = ast.parse(source, filename)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, filename, "exec"), namespace)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), filename, "eval"), namespace)
        if value is not None:
            namespace["_"] = value
            print(repr(value))


def _run(source: str, filename: str, namespace: dict[str, Any]) -> str:
    """Run one piece of code; return its status line, "ok" or "error <type>"."""
    sys.stdout, sys.stderr = _fresh_stream(1), _fresh_stream(2)
    try:
        _execute(source, filename, namespace)
        status = "ok"
    except SystemExit as error:
        print(f"SystemExit: {error.code} (the interpreter goes on)")
        status = "ok"
    except (
        BaseException
    ) as error:  # whatever the agent's code raises is its own affair, KeyboardInterrupt and MemoryError included
        print(_shortened_traceback(error, filename), file=sys.stderr)
        status = f"error {type(error).__name__}"
    _flush()
    return status


def _namespace() -> dict[str, Any]:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    setattr(builtins, "exit", sys.exit)  # noqa: B010  -S leaves these two out, and typeshed knows them with another type
    setattr(builtins, "quit", sys.exit)  # noqa: B010
    return module.__dict__


def serve(control: int) -> None:
    namespace = _namespace()
    count = 0
    while True:
        try:
            length = int.from_bytes(_read_exactly(control, HEADER), "little")
            source = _read_exactly(control, length).decode("utf-8", "surrogatepass")
        except EOFError:
            return
        count += 1
        status = _run(source, f"<code {count}>", namespace)
        os.write(control, status.encode("ascii", "replace")[:120] + b"\n")
