"""Whether a process lives, for simulated cards: a dead one holds nothing."""

import os
import signal
from dataclasses import dataclass

_EXITING = 4  # PF_EXITING of the kernel's include/linux/sched.h


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process, alive or not.

    start_ticks: 0 when there is no such process, or only its zombie, which holds no memory.
    stopped: by a signal. ending: killed, and not gone yet.
    """

    start_ticks: int = 0
    stopped: bool = False
    ending: bool = False


def process_status(pid: int) -> ProcessStatus:
    """As /proc/PID/stat has it of the first thread; a simulated client has no other."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return ProcessStatus()
    try:
        fields = os.read(file, 1024).rpartition(b") ")[2].split()
    except ProcessLookupError:
        return ProcessStatus()
    finally:
        os.close(file)
    # the first thread's memory stays with the others
    ended = fields[0] in {b"Z", b"X"} and int(fields[17]) < 2
    ending = bool(int(fields[6]) & _EXITING or int(fields[28]) & 1 << signal.SIGKILL - 1)
    return ProcessStatus(0 if ended else int(fields[19]), fields[0] == b"T", ending)


def process_start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat; 0 as above."""
    return process_status(pid).start_ticks
