"""`over`, the poststop hook: tells mpsd that a container has ended.

One rule: it never fails and never takes long, since the container's engine waits for it; mpsd finds out by itself too.
"""

import os
import select
import time

from mpsd.containers.runtime import json_text
from mpsd.containers.runtime.asking import ask
from mpsd.containers.runtime.fields import table, text
from mpsd.containers.runtime.refused import Refused
from mpsd.containers.runtime.runtime_log import RuntimeLog

_DEADLINE_S = 3.0
_LONGEST_STATE = 1024**2  # bytes
_STATE = "the container's state"


def over(root: str, run_directory: str, log_path: str) -> None:
    """Reads the OCI state of the container on standard input."""
    end = time.monotonic() + _DEADLINE_S
    log = RuntimeLog(log_path, root, "")
    try:
        container = text(table(json_text.read(_state(end), _STATE), _STATE), "id", _STATE)
        log = RuntimeLog(log_path, root, container)
        left = max(end - time.monotonic(), 0.0)
        ask(run_directory, "/v1/containers/over", {"root": root, "id": container}, left, patience_s=0.0)
    except (Refused, OSError) as error:
        log.event("over", reasons=[str(error)])
    else:
        log.event("over")


def _state(end: float) -> bytes:
    data = bytearray()
    while select.select([0], [], [], max(end - time.monotonic(), 0.0))[0]:
        piece = os.read(0, 65536)
        if not piece:
            return bytes(data)
        data += piece
        if len(data) > _LONGEST_STATE:
            raise Refused(f"{_STATE} has more than {_LONGEST_STATE} bytes")
    raise Refused(f"{_STATE} was not written within {_DEADLINE_S:g} s")
