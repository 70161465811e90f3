"""Which MPS control daemons run on this machine, whoever has started them.

One rule: a process counts by its command line alone, as anybody's daemon would show it; none is asked anything.
"""

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from mpsd.model.cuda_limit_parser import PIPE_DIRECTORY
from mpsd.mps.control_pipe import PROGRAM
from mpsd.operations.doctor.rules.doctor_facts import DaemonSeen, Unknown
from mpsd.platform import processes
from mpsd.platform.peer import peer_of

_SERVES = re.compile(r"-[A-Za-z]*[df]|--(daemon|forground|foreground)")  # without one it only passes commands on
_WORDS_BEFORE = 4  # of an interpreter
_CONNECT_S = 1.0


def daemons(is_here: Callable[[Mapping[str, str]], bool]) -> tuple[DaemonSeen, ...] | Unknown:
    """Those of this machine, by pid; Unknown where other users' processes are hidden, or whose machine they are of is.

    is_here: asked with a process's environment; where that cannot be read with an empty one, as of no played machine.
    """
    if not Path("/proc/1").exists():
        return Unknown("/proc hides the processes of other users; ask again as root")
    found = dict(_serving())
    seen = []
    for pid, command in sorted(found.items()):
        environment = processes.environment_of(pid)
        is_fork, has_ended = processes.parent_of(pid) in found, processes.identity_of(pid) is None
        if is_fork or has_ended:
            continue
        if environment is None and not is_here({}):
            return Unknown(f"the environment of pid {pid} may not be read; ask again as root")
        if is_here(environment or {}):
            pipe = (environment or {}).get(PIPE_DIRECTORY, "")
            seen.append(DaemonSeen(pid, command, pipe, pipe_is_there=_is_there(pipe)))
    return tuple(seen)


def _is_there(pipe: str) -> bool:
    """Whether there is a socket in it for whoever is here; a daemon goes on listening on one that was removed."""
    try:
        return bool(pipe) and Path(pipe, "control").exists()
    except OSError:
        return False


def _serving() -> Iterator[tuple[int, str]]:
    """Pid and command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except OSError:  # it has ended
            continue
        if _is_daemon(words) and processes.identity_of(int(folder.name)):
            yield int(folder.name), " ".join(words)


def _is_daemon(words: list[str]) -> bool:
    place = next((at for at, word in enumerate(words[:_WORDS_BEFORE]) if word.rpartition("/")[2] == PROGRAM), None)
    return place is not None and any(_SERVES.fullmatch(word) for word in words[place + 1 :])


def other_namespace(path: Path) -> Unknown | None:
    """Unknown where whoever listens on this socket is in a pid namespace whose pids mean nothing here."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_CONNECT_S)
            probe.connect(str(path))
            seen = peer_of(probe).pid != 0
    except OSError:  # nobody does
        return None
    return None if seen else Unknown("mpsd runs in another pid namespace; ask there, or with hostPID")
