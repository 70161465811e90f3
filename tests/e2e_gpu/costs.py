"""What mpsd's processes on this machine take of it: resident memory, and processor time over a
while."""

import json
import time
from collections.abc import Callable

import psutil

_MOST_RSS_MIB, _MOST_CORES = 200.0, 0.2
_ROLES = ("control", "agent")


def assert_small(over_s: float, record_property: Callable[[str, object], None]) -> None:
    before = {name: _cpu_s(found) for name, found in _processes().items()}
    time.sleep(over_s)  # what is measured is what happens meanwhile
    figures = {}
    for name, found in _processes().items():
        cores = (_cpu_s(found) - before[name]) / over_s
        rss_mib = sum(process.memory_info().rss for process in found) / 1024**2
        figures[name] = {
            "processes": len(found),
            "rss_mib": round(rss_mib, 1),
            "cores": round(cores, 4),
        }
    print(f"\n{json.dumps(figures)}")
    record_property("costs", figures)
    for role in _ROLES:
        assert figures[role]["processes"], figures
        assert figures[role]["rss_mib"] < _MOST_RSS_MIB, figures
        assert figures[role]["cores"] < _MOST_CORES, figures


def _processes() -> dict[str, list[psutil.Process]]:
    found: dict[str, list[psutil.Process]] = {name: [] for name in (*_ROLES, "mps")}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(
            word.endswith(("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")) for word in words
        ):
            found["mps"].append(process)
        elif len(words) > 2 and words[1].endswith("/bin/mpsd") and words[2] in _ROLES:
            found[words[2]].append(process)
    return found


def _cpu_s(found: list[psutil.Process]) -> float:
    total = 0.0
    for process in found:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
