"""Where mpsd-runtime writes: its log, its user's terminal, and the file in which engines look for
errors. A place that cannot be written to never stops a container."""

import os
import time

from mpsd.containers.runtime import json_text
from mpsd.containers.runtime.command_line import CommandLine

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
_AT_ONCE = 4096  # bytes (PIPE_BUF): what a pipe that has room takes at once
_READ_WITHIN_S = 1.0


class RuntimeLog:
    """One JSON line an event."""

    def __init__(self, line: CommandLine) -> None:
        self._path = line.own["runtime-log"]
        self._of = {"id": line.container, "root": line.root}
        self._works = True

    def event(self, name: str, **fields: object) -> None:
        if not self._works:
            return
        line = {"time": _now(), "event": name, **self._of, **fields}
        try:
            try:  # noqa: SIM105 - contextlib takes longer to load
                os.mkdir(os.path.dirname(self._path), 0o750)
            except FileExistsError:
                pass
            _append(self._path, json_text.write(line, "the event") + "\n", 0o640, os.O_NOFOLLOW)
        except OSError as error:
            self._works = False
            warn(
                f"its log {self._path} cannot be written: {error.strerror}; the container is not"
                " delayed by this"
            )


def warn(text: str) -> None:
    """`docker run` shows it. Nobody who does not read is waited for."""
    import select  # not loaded where there is nothing to say

    said = f"mpsd-runtime: {text}\n".encode("utf-8", "backslashreplace")
    try:
        for start in range(0, len(said), _AT_ONCE):
            if not select.select([], [2], [], _READ_WITHIN_S)[1]:
                return
            os.write(2, said[start : start + _AT_ONCE])
    except OSError:
        return


def report_error(path: str, form: str, text: str) -> None:
    """As runc would: containerd, Docker and podman show it to their user."""
    if path in {"", "/dev/stderr"}:
        return
    quoted = json_text.write(text, "the error")
    if form == "json":
        line = f'{{"level":"error","msg":{quoted},"time":"{_now()}"}}\n'
    else:
        line = f'time="{_now()}" level=error msg={quoted}\n'
    try:
        _append(path, line, 0o644, 0)
    except OSError as error:
        warn(f"the file {path} of --log cannot be written: {error.strerror}")


def _append(path: str, line: str, mode: int, flags: int) -> None:
    file = os.open(path, _APPEND | flags, mode)
    try:
        os.write(file, line.encode())  # one write: lines of others stay whole
    finally:
        os.close(file)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
