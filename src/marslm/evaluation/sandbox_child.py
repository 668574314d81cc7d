"""What runs inside the sandbox: limits first, then the program that standard input brings.

Started as a file of its own, without this package or any other installed one. The kernel then
refuses, for good: sockets, new processes and programs, signals, and every change to files. Linux on
x86-64 only. Knows nothing about what is run.
"""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import resource
import struct
import sys

# Numbers of x86-64's calls: the kernel's arch/x86/entry/syscalls/syscall_64.tbl.
_REFUSED = [
    *(41, 53),  # socket, socketpair
    *(56, 57, 58, 435, 59, 322),  # clone, fork, vfork, clone3, execve, execveat
    *(62, 200, 234, 101, 310, 311),  # kill, tkill, tgkill, ptrace, process_vm_readv, ..._writev
    *(76, 77, 82, 83, 84, 85, 86, 87, 88),  # truncate, rename, mkdir, rmdir, creat, (un)link
    *(90, 91, 92, 93, 94, 132, 133, 235),  # chmod, chown, utime, mknod
    *(258, 259, 260, 261, 263, 264, 265, 266, 268, 280, 316, 452),  # the same, at a folder
    *(165, 166, 302, 425, 437),  # mount, umount, prlimit, io_uring, openat2
]
_OPENS = [(2, 1), (257, 2)]
"""(call, which argument has the flags) of open and openat."""
_ARCHITECTURE = 0xC000003E

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# Classic BPF: load a word, compare, test bits, return.
_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_X32 = 0x40000000
"""Calls from here on are the same ones under other numbers."""

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


def _filter() -> bytes:
    """Return the program that the kernel asks about each call, 8 bytes an instruction."""

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    steps = [
        step(_LOAD, 4),
        step(_EQUAL, _ARCHITECTURE, 1, 0),
        step(_RETURN, _KILL),
        step(_LOAD, 0),
        step(_AT_LEAST, _X32, 0, 1),
        step(_RETURN, _REFUSE),
    ]
    for number in _REFUSED:
        steps += [step(_EQUAL, number, 0, 1), step(_RETURN, _REFUSE)]
    for number, argument in _OPENS:
        steps += [
            step(_EQUAL, number, 0, 4),
            step(_LOAD, 16 + 8 * argument),
            step(_BITS, _WRITES, 0, 1),
            step(_RETURN, _REFUSE),
            step(_RETURN, _ALLOW),
        ]
    return b"".join([*steps, step(_RETURN, _ALLOW)])


def _lock() -> None:
    """Have the kernel refuse what a computation does not need; OSError if it will not."""
    steps = _filter()
    buffer = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the kernel refuses to lock the process")


def main() -> None:
    """Run the program; write the token it came with if it ran to its end."""
    request = json.load(sys.stdin)
    answer = os.dup(1)
    resource.setrlimit(resource.RLIMIT_AS, (request["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_seconds"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lock()
    sys.stdin, sys.stdout = io.StringIO(), io.StringIO()
    exec(compile(request["program"], "<program>", "exec"), {"__name__": "__main__"})
    os.write(answer, request["token"].encode())


if __name__ == "__main__":
    main()
