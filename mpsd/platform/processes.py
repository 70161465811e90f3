"""Processes of this machine, which are known by pid, start time and boot id, and signalled by
pidfd."""

import errno
import fcntl
import os
import resource
import select
import signal
import struct
import sys
import weakref
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from pathlib import Path

from mpsd.model.identity import END_UNKNOWN, ProcessIdentity, killed_by
from mpsd.platform.threaded_read import ThreadedRead

_PROC = Path("/proc")
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN}


def is_shortage(error: BaseException) -> bool:
    """Whether it failed for want of descriptors, memory, space or processes (fork's EAGAIN)."""
    return isinstance(error, MemoryError) or getattr(error, "errno", None) in _SHORTAGES


_MOST_FILES = 65_536
_files_at_start: int | None = None  # the soft limit; None where it was not raised


def raise_file_limit() -> None:
    """Raises the soft limit to the hard one, or to 65 536."""
    global _files_at_start
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < (wanted := min(hard, _MOST_FILES)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _files_at_start = soft


def restore_file_limit(pid: int) -> None:
    """Restores what a child would have without mpsd: select(2) takes 1024 files."""
    if _files_at_start is not None:
        with suppress(OSError):  # it has ended
            _soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(_files_at_start, hard), hard))


@cache
def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def identity_of(pid: int) -> ProcessIdentity | None:
    """None when nobody has this pid. A process lives by its other threads too."""
    fields = fields_from_state(pid)
    if fields is None or (fields[0] in b"ZXx" and int(fields[17]) < 2):
        return None
    return ProcessIdentity(pid, int(fields[19]), boot_id())


def fields_from_state(pid: int) -> list[bytes] | None:
    """/proc/PID/stat from field 3 (state, behind the name in brackets) to 22, then the rest."""
    if stat := _read_start(pid, "stat"):
        return stat[stat.rindex(b")") + 2 :].split(None, 20)
    return None


def _own_fields(identity: ProcessIdentity) -> list[bytes] | None:
    """The same of this very process."""
    fields = fields_from_state(identity.pid)
    if fields and int(fields[19]) == identity.start_ticks:
        return fields
    return None


def _read_start(pid: int | str, name: str, size: int = 4096) -> bytes:
    """Of a file in /proc/PID, or of a thread; empty when it is gone or hidden."""
    try:  # not by Path or `open`: this is read for every client at every look
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return b""
    try:
        return os.read(descriptor, size)
    except ProcessLookupError:
        return b""
    finally:
        os.close(descriptor)


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether this very process lives; a zombie does not."""
    return identity_of(identity.pid) == identity


_EXITING = 0x4  # PF_EXITING of linux/sched.h


def is_ending(identity: ProcessIdentity) -> bool:
    """Whether this very process is killed or exits, by fields 9 and 31 of stat, proc(5)."""
    fields = _own_fields(identity)
    if fields is None:
        return True
    is_killed = int(fields[-1].split()[8]) & 1 << (signal.SIGKILL - 1)
    return bool(int(fields[6]) & _EXITING or is_killed)


def open_pidfd(identity: ProcessIdentity) -> int | None:
    """A pidfd, readable once the process has ended; None when it has. The caller closes it."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    try:
        # the pidfd holds the pid, which cannot change hands meanwhile
        if is_alive(identity):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def send_signal(identity: ProcessIdentity, signum: signal.Signals) -> bool:
    """False when this very process is gone."""
    if (descriptor := open_pidfd(identity)) is None:
        return False
    try:
        return signal_held(descriptor, signum)
    finally:
        os.close(descriptor)


def has_ended(descriptor: int) -> bool:
    """Whether it has, to its last thread."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


_GET_INFO = 0xC040FF0B  # PIDFD_GET_INFO of linux/pidfd.h, of a structure of 64 bytes
_INFO_EXIT = 1 << 3  # PIDFD_INFO_EXIT, from Linux 6.15 on
_INFO = struct.Struct("=Q52xi")  # mask, then exit_code, the last of its first version


def exit_status(descriptor: int, identity: ProcessIdentity) -> int | None:
    """How the process of a pidfd has ended, as wait(2) encodes it; None where nobody says: /proc
    does until it is reaped, and from Linux 6.15 on its pidfd afterwards."""
    fields = _own_fields(identity)
    if fields and fields[0] == b"Z":
        # proc(5): field 52, exit_code, is 0 for whoever may not trace the process
        status = int(fields[-1].split()[29])
        if status or _may_trace(identity.pid):
            return status
    info = bytearray(_INFO.pack(_INFO_EXIT, 0))
    with suppress(OSError):  # an older kernel
        fcntl.ioctl(descriptor, _GET_INFO, info)
        mask, status = _INFO.unpack(info)
        if mask & _INFO_EXIT:
            return int(status)
    return None


def _may_trace(pid: int) -> bool:
    """Whether /proc hides nothing of it: `personality` is as secret as its exit code."""
    with suppress(OSError):
        return bool(_read_start(pid, "personality"))
    return False


def how_ended(status: int | None) -> str:
    """In words, such as `killed by SIGKILL` or `exit code 1`. status: of `exit_status`."""
    if status is None:
        return END_UNKNOWN
    if not (signum := os.WTERMSIG(status)):
        return f"exit code {os.WEXITSTATUS(status)}"
    try:
        return killed_by(signal.Signals(signum).name)
    except ValueError:
        return killed_by(f"signal {signum}")


def signal_held(descriptor: int, signum: signal.Signals) -> bool:
    """False when it has ended. PermissionError."""
    try:
        signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        return False
    return True


_READ_S = 0.1  # for what may never end


def address_space_pages(pid: int) -> int | None:
    """Changes with what it maps; 0 or None when it is gone."""
    if pages := _read_start(pid, "statm").partition(b" ")[0]:
        return int(pages)
    return None


def command_of(pid: int) -> str:
    """Its words, or the kernel's name for it; empty when it is gone."""
    try:
        return ThreadedRead(partial(read_command, pid), user_of(pid)).value(_READ_S)
    except TimeoutError:
        return name_of(pid)


def read_command(pid: int) -> str:
    """The same; it may never end."""
    words = _read_start(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ")
    return words.decode(errors="replace") or name_of(pid)


def name_of(pid: int) -> str:
    """The kernel's name for it; empty when it is gone."""
    return _read_start(pid, "comm").rstrip(b"\n").decode(errors="replace")


def every_pid() -> tuple[int, ...]:
    return tuple(map(int, filter(str.isdecimal, os.listdir("/proc"))))  # noqa: PTH208


def parent_of(pid: int) -> int:
    """0 when it has none, or is gone."""
    fields = fields_from_state(pid) or [b"", b"0"]
    return int(fields[1])


def line_of(pid: int) -> Iterator[int]:
    """It, and those that it descends from, in its pid namespace."""
    for _generation in range(64):
        if pid <= 1:
            return
        yield pid
        pid = parent_of(pid)


def state_of(identity: ProcessIdentity) -> str:
    """The kernel's letter for its state (D waits for a device, Z is dead); empty when gone."""
    fields = _own_fields(identity) or [b""]
    return fields[0].decode()


def user_of(pid: int) -> int | None:
    """Its real uid; None when it is gone."""
    if uids := _status(str(pid)).get("Uid", "").split():
        return int(uids[0])
    return None


def pid_inside(pid: int) -> int:
    """Its pid in the pid namespace of its container; 0 when it is gone."""
    if status := _status(str(pid)):
        return int(status.get("NSpid", str(pid)).split()[-1])
    return 0


_STATUS_BYTES = 64 * 1024  # thousands of groups may be listed before the signals


def _status(path: str) -> dict[str, str]:
    """/proc/PATH/status by its fields; empty when it is gone. A line break in a name is \\n."""
    found: dict[str, str] = {}
    for line in _read_start(path, "status", _STATUS_BYTES).decode(errors="replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, value.strip())
    return found


_MOST_TASKS = 1024  # that are looked at: a stop stops all of them alike
# where they are not handled: signal(7)
_HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
_STOPPING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


def _tasks(pid: int) -> list[str]:
    """The threads, as paths below /proc; none when it is gone."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/task") as found:
        return [f"{pid}/task/{one.name}" for one in islice(found, _MOST_TASKS)]
    return []


def is_stopped(identity: ProcessIdentity) -> bool:
    """Whether each of its threads is stopped (not frozen) or has ended."""
    stats = [_read_start(task, "stat") for task in _tasks(identity.pid)]
    states = {stat[stat.rindex(b")") + 2 :][:1] for stat in stats if stat}
    return bool(states & {b"T", b"t"}) and states <= {b"T", b"t", b"Z", b"X"} and is_alive(identity)


def dies_of(identity: ProcessIdentity, signum: int) -> bool:
    """Whether this signal would end this very process at once: it neither handles, ignores nor
    blocks it, and is not the first of its pid namespace (pid_namespaces(7)). False when it is gone;
    True where the kernel does not say."""
    if signum in _HARMLESS | _STOPPING:
        return False
    status = _status(str(identity.pid))
    bit = 1 << (signum - 1)
    if signum != signal.SIGKILL:
        is_first = status.get("NSpid", "").split()[-1:] == ["1"]
        if is_first or _mask(status, "SigIgn") & bit or _handles(identity.pid, status, bit):
            return False
    return is_alive(identity)


def handles(identity: ProcessIdentity, signum: int) -> bool:
    """Whether this very process handles this signal, or each of its threads blocks it or waits for
    it. False when it is gone, or the kernel does not say."""
    status = _status(str(identity.pid))
    return _handles(identity.pid, status, 1 << (signum - 1)) and is_alive(identity)


def _handles(pid: int, status: Mapping[str, str], bit: int) -> bool:
    if _mask(status, "SigCgt") & bit:
        return True
    is_known = False
    for task in _tasks(pid):  # mostly the first takes it
        if found := _status(task):
            is_known = True
            if not (_mask(found, "SigBlk") | _awaited(task)) & bit:
                return False
    return is_known


# rt_sigtimedwait(2) of asm/unistd.h
_SIGWAIT = {"x86_64": b"128", "aarch64": b"137"}.get(os.uname().machine)


def _awaited(task: str) -> int:
    """The signals that a thread waits for, which its SigBlk leaves out; 0 where unreadable."""
    with suppress(OSError):
        call = _read_start(task, "syscall").split()
        if len(call) > 1 and call[0] == _SIGWAIT:
            memory = os.open(f"/proc/{task}/mem", os.O_RDONLY)
            try:
                return int.from_bytes(os.pread(memory, 8, int(call[1], 16)), sys.byteorder)
            finally:
                os.close(memory)
    return 0


def _mask(status: Mapping[str, str], name: str) -> int:
    return int(status.get(name, "0"), 16)


def descendants_of(pid: int) -> tuple[int, ...]:
    """Its children and theirs; none when it is gone."""
    import psutil  # what runs on a laptop does without it

    try:
        return tuple(child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return ()


class ProcessSet:
    """Those of many processes, by pidfds, that lived when `ask` was called last."""

    def __init__(self) -> None:
        # poll(2) takes no more than the soft limit of files
        self._epoll = select.epoll()
        self._pids: dict[int, int] = {}  # by pidfd
        self._pidfds: dict[int, int] = {}  # by pid
        weakref.finalize(self, lambda pidfds: [*map(os.close, pidfds)], self._pids)

    def add(self, process: ProcessIdentity) -> None:
        """Adds it, unless it is gone or no pidfds are left."""
        try:
            if process.pid not in self._pidfds and (pidfd := open_pidfd(process)) is not None:
                self._pids[pidfd], self._pidfds[process.pid] = process.pid, pidfd
                self._epoll.register(pidfd, select.EPOLLIN)
        except OSError:
            self.keep_only(self._pidfds.keys() - {process.pid})

    def __contains__(self, pid: object) -> bool:
        return pid in self._pidfds

    def ask(self) -> set[int]:
        """Those that have ended, which are in here no more."""
        ended = {self._pids[pidfd] for pidfd, _events in self._epoll.poll(0)}
        for pid in ended:
            self._remove(pid)
        return ended

    def keep_only(self, pids: Container[int]) -> None:
        for pid in list(self._pidfds):
            if pid not in pids:
                self._remove(pid)

    def _remove(self, pid: int) -> None:
        pidfd = self._pidfds.pop(pid)
        del self._pids[pidfd]
        with suppress(OSError):  # it could not be put in
            self._epoll.unregister(pidfd)
        os.close(pidfd)
