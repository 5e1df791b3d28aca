"""System-call filter of the interpreter: an allow-list.

Blocked are new processes (threads are allowed), exec, sockets except a connected pair (asyncio), memory beyond the
address-space limit, tracing and mounting. A blocked call fails with EPERM; one newer than this table with ENOSYS, so
that libraries fall back; a call of another architecture kills the process.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from .linux import PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SandboxSetupError, libc, machine, prctl

_TABLE = """
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70 preadv2:327:286
pwritev2:328:287 open:2:- openat:257:56 close:3:57 close_range:436:436 lseek:8:62 stat:4:- fstat:5:80 lstat:6:- \
newfstatat:262:79
statx:332:291 access:21:- faccessat:269:48 faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents:78:- \
getdents64:217:61
getcwd:79:17 chdir:80:49 fchdir:81:50 mkdir:83:- mkdirat:258:34 rmdir:84:- unlink:87:- unlinkat:263:35 rename:82:- \
renameat:264:38
renameat2:316:276 link:86:- linkat:265:37 symlink:88:- symlinkat:266:36 chmod:90:- fchmod:91:52 fchmodat:268:53 \
truncate:76:45
ftruncate:77:46 fallocate:285:47 fsync:74:82 fdatasync:75:83 utime:132:- utimes:235:- utimensat:280:88 \
futimesat:261:- umask:95:166
statfs:137:43 fstatfs:138:44 fadvise64:221:223 readahead:187:213 copy_file_range:326:285 sendfile:40:71 flock:73:32 \
fcntl:72:25
dup:32:23 dup2:33:- dup3:292:24 pipe:22:- pipe2:293:59 poll:7:- ppoll:271:73 select:23:- pselect6:270:72 \
epoll_create:213:-
epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:- \
eventfd2:290:19
timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87 mmap:9:222 munmap:11:215 mremap:25:216 \
mprotect:10:226
madvise:28:233 msync:26:227 brk:12:214 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139
rt_sigpending:127:136 rt_sigtimedwait:128:137 rt_sigsuspend:130:133 rt_sigqueueinfo:129:138 sigaltstack:131:132 \
kill:62:129
tgkill:234:131 tkill:200:130 pause:34:- alarm:37:- getitimer:36:102 setitimer:38:103 timer_create:222:107 \
timer_settime:223:110
timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111 nanosleep:35:101 clock_nanosleep:230:115 \
clock_gettime:228:113
clock_getres:229:114 gettimeofday:96:169 time:201:- times:100:153 getpid:39:172 getppid:110:173 gettid:186:178 \
getuid:102:174
geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150 getgroups:115:158 getpgid:121:155 \
getpgrp:111:-
getsid:124:156 getpriority:140:141 setpriority:141:140 sched_yield:24:124 sched_getaffinity:204:123 \
sched_setaffinity:203:122
sched_getscheduler:145:120 sched_getparam:143:121 getcpu:309:168 getrlimit:97:163 setrlimit:160:164 prlimit64:302:261 \
capget:125:90
getrusage:98:165 sysinfo:99:179 uname:63:160 getrandom:318:278 futex:202:98 futex_waitv:449:449 set_robust_list:273:99
get_robust_list:274:100 set_tid_address:218:96 rseq:334:293 membarrier:324:283 arch_prctl:158:- \
restart_syscall:219:128 exit:60:93
exit_group:231:94 wait4:61:260 waitid:247:95 sendto:44:206 recvfrom:45:207 sendmsg:46:211 recvmsg:47:212 shutdown:48:210
getsockopt:55:209 getsockname:51:204 getpeername:52:205
"""
"""name:number on x86_64:number on aarch64, from the kernel's unistd headers; - where the architecture has no such
call."""

_COLUMN = {"x86_64": 1, "aarch64": 2}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
_PRCTL = {"x86_64": 157, "aarch64": 167}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_NEWEST_KNOWN = 450

_CLONE_THREAD = 0x00010000
_AF_UNIX = 1
_PRCTL_NAMES = (15, 16)
_IOCTL_HARMLESS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""

_LOAD = 0x20
_AND = 0x54
_JUMP_EQUAL = 0x15
_JUMP_GREATER = 0x25
_RETURN = 0x06
_SECCOMP_MODE_FILTER = 2
_KILL = 0x80000000
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

_Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _argument(index: int) -> int:
    """Offset of the low word of an argument in `struct seccomp_data` (both machines here are little-endian)."""
    return 16 + 8 * index


def _when(number: int, body: list[_Instruction]) -> list[_Instruction]:
    """Run `body`, which always returns, if the system call is `number`."""
    return [(_JUMP_EQUAL, 0, len(body), number), *body]


def _only_values(argument: int, values: tuple[int, ...]) -> list[_Instruction]:
    tests = [step for value in values for step in ((_JUMP_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]
    return [(_LOAD, 0, 0, _argument(argument)), *tests, (_RETURN, 0, 0, _ERRNO | errno.EPERM)]


def _threads_only() -> list[_Instruction]:
    return [
        (_LOAD, 0, 0, _argument(0)),
        (_AND, 0, 0, _CLONE_THREAD),
        (_JUMP_EQUAL, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]


def allowed_numbers(arch: str) -> list[int]:
    cells = (entry.split(":")[_COLUMN[arch]] for entry in _TABLE.split())
    return [int(cell) for cell in cells if cell != "-"]


def build_filter(arch: str, *, threads: bool) -> bytes:
    """Return the BPF program as an array of `struct sock_filter`; `threads=False` refuses threads as well."""
    program: list[_Instruction] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[arch]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    for number in allowed_numbers(arch):
        program += _when(number, [(_RETURN, 0, 0, _ALLOW)])
    if threads:
        program += _when(_CLONE[arch], _threads_only())
    program += _when(_SOCKETPAIR[arch], _only_values(0, (_AF_UNIX,)))
    program += _when(_PRCTL[arch], _only_values(0, _PRCTL_NAMES))
    program += _when(_IOCTL[arch], _only_values(1, _IOCTL_HARMLESS))
    program += _when(_CLONE3, [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)])
    program += [
        (_JUMP_GREATER, 0, 1, _NEWEST_KNOWN),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def install(*, threads: bool) -> None:
    """Install the filter on the calling (single-threaded) process, permanently; raise SandboxSetupError."""
    code = build_filter(machine(), threads=threads)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program), 0, 0) != 0:
        code_name = errno.errorcode.get(ctypes.get_errno(), "unknown")
        raise SandboxSetupError(f"seccomp filter refused: {code_name}; the kernel needs CONFIG_SECCOMP_FILTER")
