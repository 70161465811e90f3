"""Which processes on the GPUs are mpsd's own: MPS servers that just started, and the clients it tries a driver with.

One rule: own is what the kernel says descends from mpsd or from a control daemon of its records, and whatever mpsd
itself descends from; what a process claims counts for nothing.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import DomainRecord
from mpsd.platform import processes, run_directory


class OwnProcesses:
    """directory: mpsd's run directory, whose holder is `mpsd control`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._above = frozenset(processes.line_of(os.getpid()))
        self._known: frozenset[ProcessIdentity] = frozenset()

    def among(self, asked: Iterable[ProcessIdentity], records: Iterable[DomainRecord]) -> frozenset[ProcessIdentity]:
        """Those of `asked` that are mpsd's own. One that was is as long as it lives."""
        asked = frozenset(asked)
        unknown = asked - self._known
        if unknown:
            roots = self._roots(records)
            found = {
                one for one in unknown if one.pid in self._above or not roots.isdisjoint(processes.line_of(one.pid))
            }
            self._known = (self._known & asked) | found
        else:
            self._known &= asked
        return self._known

    def _roots(self, records: Iterable[DomainRecord]) -> frozenset[int]:
        roots = {os.getpid(), run_directory.holder(self._directory) or os.getpid()}
        for record in records:
            roots.update(record.servers, [record.daemon.pid] if record.daemon else [])
        return frozenset(roots)
