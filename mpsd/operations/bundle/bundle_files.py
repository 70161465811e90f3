"""Reads what a bundle takes of a machine: ends of files, what programs print, what the kernel says of itself.

One rule: a look has a deadline and a size, and what cannot be had is OSError with the reason.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path

_DEADLINE_S = 10.0


def tail(path: Path, most_bytes: int) -> str:
    """The end of a file, whatever bytes it has. A link is not followed: mpsd makes none. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes).decode(errors="replace")


def printed(*command: str) -> str:
    """What a program prints. OSError where it is not there, fails, or takes too long."""
    if not shutil.which(command[0]):
        raise FileNotFoundError(f"{command[0]} is not on PATH")
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, text=True, errors="replace", timeout=_DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{command[0]} does not end within {_DEADLINE_S:g} s") from None
    if done.returncode:
        raise OSError(f"{command[0]} failed: {done.stderr.strip()[:300] or f'exit code {done.returncode}'}")
    return done.stdout


def system() -> dict[str, object]:
    """The kernel, the distribution, and which version of cgroups is in use."""
    try:
        distribution = platform.freedesktop_os_release()
    except OSError:
        distribution = {}
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "distribution": distribution.get("PRETTY_NAME", "not known"),
        "cgroups": 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1,
        "dmem": Path("/sys/fs/cgroup/dmem.capacity").exists(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
    }
