"""What a process was started with, as far as it lets that be seen: it may move the range that the
kernel takes for its environment, and keep a read of it from ending."""

import errno
import os
from collections.abc import Collection, Iterable, Iterator
from functools import partial

from mpsd.platform import processes
from mpsd.platform.threaded_read import ThreadedRead

_LARGEST_ENVIRONMENT = 6 * 1024**2  # bytes that the kernel gives to an exec: execve(2)
_LARGEST_ENTRY = 128 * 1024  # bytes: MAX_ARG_STRLEN
_LARGEST_VALUE = 4096  # bytes; of a variable that counts, a path at most
_PIECE = 64 * 1024  # bytes
_READ_S = 0.1  # at most, where it is waited for


class ForgedEnvironment(Exception):
    """It is no environment that an exec makes, as after prctl(PR_SET_MM): the message says why."""


class NoEnvironment(Exception):
    """It has none, as in the middle of an exec, or maps nothing of what it calls one."""


def environment_of(
    pid: int, names: Collection[str], within_s: float = _READ_S
) -> dict[str, str] | None:
    """As `read_environment`: empty where there is none, and None too where that is not read in
    time, or forged."""
    try:
        reading = ThreadedRead(partial(read_environment, pid, names), processes.user_of(pid))
        return reading.value(within_s)
    except NoEnvironment:
        return {}
    except (TimeoutError, ForgedEnvironment):
        return None


def read_environment(pid: int, names: Collection[str]) -> dict[str, str] | None:
    """Which of these variables the process was started with; None when it is gone or not ours to
    read. The first of a name counts, as for getenv(3). NoEnvironment, ForgedEnvironment; OSError
    for a shortage. It may never end."""
    start, end = _range(pid)
    if end - start > _LARGEST_ENVIRONMENT:
        raise ForgedEnvironment(f"{end - start} bytes, more than any exec is given")
    try:
        return variables_in(_environment_pieces(pid), names)
    except OSError as error:
        if processes.is_shortage(error):
            raise
        return None


def variables_in(pieces: Iterable[bytes], names: Collection[str]) -> dict[str, str]:
    """pieces: of an environment. NoEnvironment, ForgedEnvironment."""
    found: dict[str, str] = {}
    size = 0
    rest = b""
    for piece in pieces:
        size += len(piece)
        entries, _zero, rest = (rest + piece).rpartition(b"\0")
        if size > _LARGEST_ENVIRONMENT or len(rest) > _LARGEST_ENTRY:
            raise ForgedEnvironment("more bytes than any exec is given")
        _find(names, entries, found)
    if not size:
        raise NoEnvironment
    _find(names, rest, found)
    return found


def _find(names: Collection[str], entries: bytes, found: dict[str, str]) -> None:
    """By searches, since millions of entries may be there."""
    entries = b"\0%b\0" % entries
    for name in names:
        before = b"\0%b=" % name.encode()
        if name in found or (at := entries.find(before)) < 0:
            continue
        begins = at + len(before)
        value = entries[begins : entries.index(b"\0", begins)]
        if len(value) > _LARGEST_VALUE:
            raise ForgedEnvironment(f"{name} has {len(value)} bytes")
        found[name] = value.decode(errors="replace")


def _environment_pieces(pid: int) -> Iterator[bytes]:
    try:
        descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
    except PermissionError:  # the file is its user's alone, and root may lack CAP_DAC_READ_SEARCH
        yield from _environment_in_memory(pid)
        return
    try:
        while piece := os.read(descriptor, _PIECE):
            yield piece
    finally:
        os.close(descriptor)


def claims_environment(pid: int) -> bool:
    """Whether it names a range; whose range stays empty has not just begun an exec."""
    start, end = _range(pid)
    return end > start


def _range(pid: int) -> tuple[int, int]:
    """Fields 50 and 51 of stat, env_start and env_end (proc(5)); 0 where it is gone, in the middle
    of an exec, or may not be traced."""
    if fields := processes.fields_from_state(pid):
        start, end = map(int, fields[-1].split()[27:29])
        return start, end
    return 0, 0


def _environment_in_memory(pid: int) -> Iterator[bytes]:
    """By process_vm_readv(2), for which CAP_SYS_PTRACE suffices. OSError."""
    import ctypes  # a tool on a laptop reads no other user's

    start, end = _range(pid)
    if not start:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    buffer = ctypes.create_string_buffer(_PIECE)
    range_of = ctypes.c_size_t * 2
    copy = ctypes.CDLL(None, use_errno=True).process_vm_readv
    while start < end:
        here = range_of(ctypes.addressof(buffer), min(_PIECE, end - start))
        there = range_of(start, min(_PIECE, end - start))
        count = copy(pid, here, 1, there, 1, ctypes.c_ulong(0))
        if count <= 0:
            number = ctypes.get_errno() or errno.EFAULT
            if number == errno.EFAULT:  # it maps no more of it: /proc/PID/environ ends there too
                return
            raise OSError(number, os.strerror(number))
        yield buffer.raw[:count]
        start += count
