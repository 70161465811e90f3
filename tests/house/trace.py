"""A profiler in the program that imports this: the modules of mpsd that run for each way.

HOUSE_ENTRIES: entries as `way=qualified.name`, with commas between. HOUSE_FOLDER: where each
process writes its lines, `way module`. What an entry calls belongs to its way, and so do the tasks
that it starts, however long they live.
"""

import os
import sys
import threading
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

_ENTRIES = {
    entry: way
    for way, _, entry in (one.partition("=") for one in os.environ["HOUSE_ENTRIES"].split(","))
}
_way = ContextVar("way", default="")
_written: set[tuple[str, str]] = set()
_file = Path(os.environ["HOUSE_FOLDER"], str(os.getpid())).open("a", buffering=1)  # noqa: SIM115 - until its end


def _profile(frame: FrameType, event: str, _argument: object) -> None:
    if event not in {"call", "return"}:
        return
    code = frame.f_code
    if code.co_qualname in _ENTRIES:
        _way.set(_ENTRIES[code.co_qualname] if event == "call" else "")
    way = _way.get()
    if way and event == "call" and code.co_name != "<module>":
        module = frame.f_globals.get("__name__", "")
        if module.startswith("mpsd.") and (way, module) not in _written:
            _written.add((way, module))
            _file.write(f"{way} {module}\n")


threading.setprofile(_profile)
sys.setprofile(_profile)
