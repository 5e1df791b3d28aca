"""What the agent's code cannot do: every promise of the threat model, tried from inside."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from env_service.environments.python_tool.sandbox.host import Sandbox, SandboxLimits

from .conftest import Run

pytestmark = pytest.mark.service

REPOSITORY = Path(__file__).resolve().parents[4]

SYSCALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
result = libc.syscall({number}, {arguments})
print("ALLOWED" if result != -1 else errno.errorcode[ctypes.get_errno()])
"""
X86_64 = {
    "socket": (41, "2, 1, 0"),
    "unix socket": (41, "1, 1, 0"),
    "connect": (42, "0, 0, 0"),
    "fork": (57, "0"),
    "vfork": (58, "0"),
    "clone without a thread": (56, "17, 0, 0, 0, 0"),
    "execve": (59, "0, 0, 0"),
    "ptrace": (101, "0, 0, 0, 0"),
    "mount": (165, "0, 0, 0, 0, 0"),
    "unshare": (272, "0x10000000"),
    "setns": (308, "0, 0"),
    "pivot_root": (155, "0, 0"),
    "chroot": (161, "0"),
    "setuid": (105, "0"),
    "capset": (126, "0, 0"),
    "memfd_create": (319, "0, 0"),
    "shmget": (29, "0, 4096, 0o1600"),
    "io_uring_setup": (425, "1, 0"),
    "bpf": (321, "0, 0, 0"),
    "keyctl": (250, "0, 0, 0, 0, 0"),
    "perf_event_open": (298, "0, 0, 0, 0, 0"),
    "process_vm_readv": (310, "1, 0, 0, 0, 0, 0"),
    "open_by_handle_at": (304, "0, 0, 0"),
    "mknod": (133, "0, 0, 0"),
    "setsockopt": (54, "0, 1, 7, 0, 0"),
    "prctl of the parent-death signal": (157, "1, 0, 0, 0, 0"),
    "ioctl TIOCSTI": (16, "0, 0x5412, 0"),
}
on_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86_64")


@on_x86_64
@pytest.mark.parametrize("name", X86_64)
def test_a_forbidden_system_call_is_refused_by_the_kernel(run: Run, name: str) -> None:
    number, arguments = X86_64[name]
    assert run(SYSCALL.format(number=number, arguments=arguments)).output == "EPERM\n"


@on_x86_64
def test_calls_by_x32_numbers_and_calls_newer_than_the_table_do_not_exist(run: Run) -> None:
    assert run(SYSCALL.format(number=0x40000000 + 41, arguments="2, 1, 0")).output == "ENOSYS\n"
    assert run(SYSCALL.format(number=9999, arguments="0")).output == "ENOSYS\n"


@on_x86_64
def test_a_32_bit_system_call_kills_the_interpreter(start: Callable[..., Sandbox]) -> None:
    machine_code = r"b'\xb8\x14\x00\x00\x00\xcd\x80\xc3'"
    code = (
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n"
        f"page.write({machine_code})\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\n"
    )
    result = start().run(code)
    assert result.status == "died"
    assert "SIGSYS" in result.detail


def test_no_socket_can_be_opened_but_asyncio_works(run: Run) -> None:
    assert "PermissionError" in run("import socket\nsocket.socket()").output
    assert "PermissionError" in run("import socket\nsocket.create_connection(('127.0.0.1', 80))").output
    assert (
        run("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7\nasyncio.run(f())").output
        == "7\n"
    )


def test_the_kernel_holds_no_memory_for_the_code_in_the_buffers_of_its_sockets(run: Run) -> None:
    code = (
        "import socket\na, b = socket.socketpair()\nwith a, b:\n    a.setsockopt(socket.SOL_SOCKET, "
        "socket.SO_SNDBUF, 2**26)"
    )
    assert "PermissionError" in run(code).output


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc/hosts",
        "/proc/self/environ",
        "/proc/1/maps",
        "/sys",
        "/home",
        str(REPOSITORY),
        __file__,
        "/bin/sh",
        "/dev/shm",
    ],
)
def test_no_host_path_is_visible(run: Run, path: str) -> None:
    assert run(f"import os\nprint(os.path.lexists({path!r}))").output == "False\n"
    assert "FileNotFoundError" in run(f"open({path!r})").output


def test_the_root_holds_nothing_but_the_view(run: Run) -> None:
    listed = set(eval(run("import os\nprint(os.listdir('/'))").output))
    top_of_python = {Path(os.__file__).resolve().parts[1]}
    assert listed <= {"usr", "lib", "lib64", "dev", "tmp", "scratch", "packages"} | top_of_python


def test_installed_packages_are_hidden_unless_chosen(run: Run) -> None:
    assert "ModuleNotFoundError" in run("import pydantic").output
    assert "ModuleNotFoundError" in run("import pip").output


def test_parent_folders_and_open_descriptors_lead_nowhere(run: Run) -> None:
    escape = (
        "import os\nos.chdir('/')\nfor _ in range(50):\n    "
        "os.chdir('..')\nprint(os.path.exists('etc/passwd'))\nos.chdir('/scratch')"
    )
    assert run(escape).output == "False\n"
    descriptors = (
        "import os\ndef alive(fd):\n    try:\n        os.fstat(fd)\n        return True\n    except "
        "OSError:\n        return False\n"
    )
    assert run(f"{descriptors}print([fd for fd in range(60) if alive(fd)])").output == "[0, 1, 2, 3]\n"
    for descriptor in range(4):
        assert "NotADirectoryError" in run(f"import os\nos.open('..', os.O_RDONLY, dir_fd={descriptor})").output


def test_no_variable_of_the_service_reaches_the_code(
    start: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    output = start().run("import os\nprint(sorted(os.environ))\nprint('sk-very-secret' in str(os.environ))").output
    assert output == "['HOME', 'LANG', 'MKL_NUM_THREADS', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'TMPDIR']\nFalse\n"


@pytest.mark.parametrize("folder", ["/", "/usr", "/dev", "/packages", os.path.dirname(os.path.realpath(os.__file__))])
def test_nothing_outside_the_scratch_folder_can_be_written(run: Run, folder: str) -> None:
    assert any(
        error in run(f"open({folder!r} + '/x', 'w')").output
        for error in ("Read-only file system", "No such file", "Permission denied")
    )


def test_the_standard_library_cannot_be_changed(run: Run) -> None:
    assert "OSError" in run("import os\nos.chmod(os.__file__, 0o777)").output
    assert "Read-only file system" in run("import os\nos.remove(os.__file__)").output


def test_the_scratch_folder_can_be_written_within_its_bounds(start: Callable[..., Sandbox]) -> None:
    sandbox = start(scratch_mb=4, file_mb=2)
    assert sandbox.run("open('a', 'w').write('hello')\nprint(open('/scratch/a').read())").output == "hello\n"
    assert sandbox.run("import tempfile\nprint(tempfile.gettempdir())").output == "/scratch\n"
    assert "File too large" in sandbox.run("open('b', 'wb').write(b'0' * 3 * 2**20)").output
    assert "No space left" in sandbox.run("for i in range(9):\n    open(f'c{i}', 'wb').write(b'0' * 2**20)").output
    assert "No space left" in sandbox.run("for i in range(9999):\n    open(f'd{i}', 'wb').close()").output


def test_two_interpreters_share_neither_files_nor_processes(start: Callable[..., Sandbox]) -> None:
    first, second = start(), start()
    first.run("open('/scratch/mine', 'w').write('secret')")
    assert second.run("import os\nprint(os.listdir('/scratch'), os.getpid())").output == "[] 1\n"
    assert "ProcessLookupError" in second.run("import os\nos.kill(2, 0)").output
    assert "ProcessLookupError" in second.run("import os\nos.kill(-1, 9)").output


def test_devices_work_but_cannot_be_changed(run: Run) -> None:
    assert run("open('/dev/null', 'w').write('x')\nopen('/dev/null').read()").output == "''\n"
    assert run("import os\nlen(os.urandom(8)), len(open('/dev/urandom', 'rb').read(8))").output == "(8, 8)\n"
    assert "Read-only file system" in run("import os\nos.utime('/dev/null')").output


def test_the_hosts_name_is_hidden(run: Run) -> None:
    assert run("import os\nos.uname().nodename").output == "'sandbox'\n"


def test_privileges_are_gone(run: Run) -> None:
    assert (
        run("import os\nprint(0 in os.getresuid() + os.getresgid(), [g for g in os.getgroups() if g == 0])").output
        == "False []\n"
    )


def test_a_fork_bomb_makes_no_process(run: Run) -> None:
    assert "PermissionError" in run("import os\nwhile True: os.fork()").output
    assert "PermissionError" in run("import subprocess\nsubprocess.run(['/bin/sh'])").output
    assert "PermissionError" in run("import multiprocessing\nmultiprocessing.Process(target=print).start()").output


def test_a_thread_bomb_is_stopped_at_the_limit(start: Callable[..., Sandbox]) -> None:
    code = (
        "import threading, time\nfor i in range(500):\n    threading.Thread(target=time.sleep, args=(3,), "
        "daemon=True).start()"
    )
    sandbox = start(threads=8)
    assert "can't start new thread" in sandbox.run(code).output
    assert int(sandbox.run("print(i)").output) <= 8


def test_memory_bombs_end_in_a_memory_error_and_the_interpreter_lives(start: Callable[..., Sandbox]) -> None:
    sandbox = start(memory_mb=256)
    assert "MemoryError" in sandbox.run("x = 'a' * 10**12").output
    assert "MemoryError" in sandbox.run("kept = []\nwhile True:\n    kept.append(bytearray(10**7))").output
    assert sandbox.run("del kept\nprint('alive')").output == "alive\n"


def test_limits_cannot_be_raised(run: Run) -> None:
    code = "import resource\nresource.setrlimit(resource.{0}, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))"
    for kind in ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_NOFILE"):
        assert "not allowed to raise maximum limit" in run(code.format(kind)).output
    assert "Too many open files" in run("handles = [open('/dev/null') for _ in range(500)]").output


def test_processor_time_is_limited_over_the_whole_life() -> None:
    sandbox = Sandbox(SandboxLimits(wall_s=120.0, cpu_s=1))
    try:
        result = sandbox.run("while True: pass")
        assert result.status == "died"
        assert "SIGKILL" in result.detail
        assert result.wall_s < 100
    finally:
        sandbox.close()
