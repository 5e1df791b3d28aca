"""A host that makes no namespaces, as the beginning of a program: the filter stays with the process and all it
starts."""

from __future__ import annotations

FORBID_NAMESPACES = """
    import ctypes, errno, struct
    from env_service.environments.python_tool.sandbox import linux, seccomp
    UNSHARE = {"x86_64": 272, "aarch64": 97}[linux.machine()]
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, UNSHARE), (6, 0, 0, 0x50000 | errno.EPERM), (6, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps), 32)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    program = seccomp._Program(4, ctypes.cast(code, ctypes.c_void_p))
    assert linux.libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(program), 0, 0) == 0
"""
