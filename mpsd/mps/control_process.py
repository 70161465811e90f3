"""The process `nvidia-cuda-mps-control -f -M` of one domain, and the files around it.

One rule: the daemon outlives mpsd. It has a session of its own and writes to a file, so that nothing breaks for its
clients when mpsd goes away; whoever comes next adopts it on proof that it is the one that listens in our directory.
"""

import errno
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpsd.model.cuda_limit_parser import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsd.model.identity import ProcessIdentity
from mpsd.mps.control_pipe import PROGRAM
from mpsd.platform import processes
from mpsd.platform.domain_folder import DomainFolder
from mpsd.platform.peer import peer_of

LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
_SOCKET_KINDS = (socket.SOCK_SEQPACKET, socket.SOCK_STREAM)  # the driver does not say which it uses


def multi_user() -> bool:
    """Whether the daemon can serve several users: it demands root for that."""
    return os.geteuid() == 0


def server_user() -> int:
    """The uid that a server may be started for."""
    return os.geteuid()


def program_found(environment: Mapping[str, str]) -> bool:
    """Whether the daemon's program is on the PATH of this environment."""
    return shutil.which(PROGRAM, path=environment.get("PATH")) is not None


def serves(daemon: ProcessIdentity, gpus: Sequence[str]) -> bool:
    """Whether this daemon was started for exactly these GPUs; False too when its environment cannot be read."""
    environment = processes.environment_of(daemon.pid)
    return environment is not None and environment.get(VISIBLE_DEVICES) == ",".join(gpus)


def start(folder: DomainFolder, gpus: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a daemon for these GPUs; multi-user where we are root, as the daemon demands. OSError if it cannot be."""
    with folder.log.open("ab") as output:
        return subprocess.Popen(
            [PROGRAM, "-f", *(["-M"] if multi_user() else [])],
            env={
                **environment,
                PIPE_DIRECTORY: str(folder.pipe),
                LOG_DIRECTORY: str(folder.log.parent),
                VISIBLE_DEVICES: ",".join(gpus),
            },
            cwd=folder.path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def listener(folder: DomainFolder) -> ProcessIdentity | None:
    """The process that listens on the domain's control socket, in the kernel's own word; None when none does."""
    for kind in _SOCKET_KINDS:
        try:
            pid = _listening_pid(folder.pipe / "control", kind)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:  # a socket, but of another kind
                raise
        else:
            return processes.identity_of(pid) if pid else None
    return None


def _listening_pid(path: Path, kind: socket.SocketKind) -> int:
    """0 where the listener is in another pid namespace."""
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.settimeout(1)  # a full backlog, as a stopped daemon leaves it, must not hang us
        probe.connect(str(path))
        return peer_of(probe).pid


def offer_to_clients(folder: DomainFolder) -> None:
    """Puts the daemon's socket into client/, in place of an older one.

    By link and rename inside client/, which itself is never replaced: mounts of running containers stay good.
    """
    beside = folder.client / ".control.new"
    beside.unlink(missing_ok=True)
    os.link(folder.pipe / "control", beside)
    beside.replace(folder.client / "control")
    beside.unlink(missing_ok=True)  # rename does nothing where both are links to one socket already, as after adoption


def withdraw_from_clients(folder: DomainFolder) -> None:
    """Takes the socket out of client/."""
    (folder.client / "control").unlink(missing_ok=True)


def end(daemon: ProcessIdentity) -> bool:
    """SIGKILL to this very daemon; its server and clients die with it. False when it was gone."""
    return processes.send_signal(daemon, signal.SIGKILL)
