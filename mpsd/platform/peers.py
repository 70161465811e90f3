"""Who is at the other end of a Unix socket.

SO_PEERCRED of unix(7) has the pid and uid of who connected, as they were then: the process may have
ended since, and another have its pid. Before anything is done to a process for having asked, the
kernel confirms that it is still the one.
"""

import errno
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_PEER_PIDFD = 77  # SO_PEERPIDFD of asm-generic/socket.h, from Linux 6.5 on; Python has no name yet


@dataclass(frozen=True, slots=True)
class Peer:
    pid: int  # 0: in a pid namespace that cannot be seen from here
    uid: int
    process: ProcessIdentity | None  # who has the pid now; None where nobody has, or pid is 0


def peer_of(connection: Any) -> Peer:
    """connection: a socket, or asyncio's view of one. OSError for a shortage."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(found)
    return Peer(pid, uid, processes.identity_of(pid))


def is_connected_by(connection: Any, process: ProcessIdentity) -> bool:
    """Whether this very process connected, and lives. process: of `peer_of`, right after the
    connect. OSError for a shortage.

    By SO_PEERPIDFD; before Linux 6.5 by sock_diag(7), whether it has the other end open, which
    takes the right to read /proc/PID/fd and its network namespace to be this one.
    """
    try:
        descriptor = connection.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD)
    except OSError as error:
        if processes.is_shortage(error):
            raise
        if error.errno != errno.ENOPROTOOPT:  # who connected has ended
            return False
        return _holds_other_end(connection, process) and processes.is_alive(process)
    try:
        # who connected has had its pid to itself until now, unless it has ended
        return processes.is_alive(process) and not processes.has_ended(descriptor)
    finally:
        os.close(descriptor)


# -- by the inodes of sockets

_MOST_FILES = 1024  # of a process, that are looked at: whoever asks has few open
_ANSWER_S = 1.0
_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG of linux/netlink.h
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY of linux/sock_diag.h
_REQUEST = 1  # NLM_F_REQUEST
_SHOW_PEER = 4  # UDIAG_SHOW_PEER of linux/unix_diag.h
_PEER = 2  # UNIX_DIAG_PEER
# nlmsghdr (length, type, flags, number, port), then unix_diag_req (family, protocol, states, inode,
# what to show, cookie)
_QUESTION = struct.Struct("=IHHII BBxxIIIq")
_ATTRIBUTES_AT = 32  # behind nlmsghdr and unix_diag_msg
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: its length with this, and type
_ALL = 0xFFFFFFFF
_INODE = re.compile(r"socket:\[([0-9]+)\]")


def _holds_other_end(connection: Any, process: ProcessIdentity) -> bool:
    other = _other_end(os.fstat(connection.fileno()).st_ino)
    return other != 0 and f"socket:[{other}]" in _open_files(process.pid)


def _other_end(inode: int) -> int:
    """The inode of the socket that this one is connected to; 0 where it is to none. OSError for a
    shortage."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(_ANSWER_S)
            about = (socket.AF_UNIX, 0, _ALL, inode, _SHOW_PEER, -1)
            kernel.send(_QUESTION.pack(_QUESTION.size, _BY_FAMILY, _REQUEST, 0, 0, *about))
            return peer_inode(kernel.recv(4096))
    except OSError as error:
        if processes.is_shortage(error):
            raise
        return 0


def connected_to(server: ProcessIdentity) -> frozenset[ProcessIdentity]:
    """Who is connected to this very process by a Unix socket that it has accepted, but itself and
    what it has started. OSError for a shortage."""
    accepted = [_INODE.fullmatch(file) for file in _open_files(server.pid)]
    others = {_other_end(int(found[1])) for found in accepted if found} - {0}
    wanted = {f"socket:[{inode}]" for inode in others}
    own = {server.pid, *processes.descendants_of(server.pid)}
    connected = set()
    for pid in processes.every_pid() if wanted else ():
        process = processes.identity_of(pid)
        if process and pid not in own and not wanted.isdisjoint(_open_files(pid)):
            connected.add(process)
    if not processes.is_alive(server):
        return frozenset()
    return frozenset(filter(processes.is_alive, connected))


def peer_inode(answer: bytes) -> int:
    """Of a unix_diag_msg; 0 where it says nothing of one, as for a socket of another network
    namespace."""
    if len(answer) < _ATTRIBUTES_AT or answer[4:6] != _BY_FAMILY.to_bytes(2, sys.byteorder):
        return 0
    at = _ATTRIBUTES_AT
    while at + _ATTRIBUTE.size <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        value = answer[at + _ATTRIBUTE.size : at + length]
        if kind == _PEER and len(value) == 4:
            return int.from_bytes(value, sys.byteorder)
        at += max((length + 3) & ~3, _ATTRIBUTE.size)
    return 0


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as found:
        for one in islice(found, _MOST_FILES):
            with suppress(OSError):  # it is closed meanwhile
                yield str(Path(one.path).readlink())
