"""The record of one domain, as its supervisor keeps it.

One rule: what it says now is on disk: nobody who reads it there, and no later mpsd, knows less than this one. Where it
cannot be written, as on a full disk, that is said once, and tried again at each look.
"""

import time
from dataclasses import replace

import mpsd
from mpsd.model.domain_states import State
from mpsd.model.domains import Domain
from mpsd.model.node_view import RECORD_VERSION, DomainRecord, is_of_boot
from mpsd.platform import processes, records
from mpsd.platform.domain_folder import DomainFolder
from mpsd.platform.logs import Logger


class KeptRecord:
    """now: on disk from the first change on; until then an earlier mpsd's is there."""

    def __init__(self, domain: Domain, folder: DomainFolder, log: Logger) -> None:
        self._path = folder.record
        self._log = log
        self._unwritten = ""  # why it is not on disk as it is now; empty where it is
        self.now = DomainRecord(
            version=RECORD_VERSION,
            domain=domain.name,
            gpus=domain.gpus,
            state=State.DOWN,
            since=time.time(),
            reason="",
            daemon=None,
            servers=(),
            restarts=0,
            restarts_total=0,
            started_at=0.0,
            compute_modes={},
            boot_id=processes.boot_id(),
            written_by=mpsd.__version__,
        )

    def earlier(self) -> DomainRecord | None:
        """What is on disk of this boot; another boot's pids and compute modes mean nothing now."""
        try:
            old = records.read(self._path, DomainRecord)
        except records.UnreadableRecord as error:
            self._log.warning("record ignored", reason=str(error))
            return None
        stale = old is None or old.version != RECORD_VERSION or old.gpus != self.now.gpus
        if stale or (old and not is_of_boot(old, processes.boot_id())):
            return None
        return old

    def change(self, **fields: object) -> None:
        """The record with these fields, on disk too where that changes anything."""
        changed = replace(self.now, **fields)  # type: ignore[arg-type]
        if changed != self.now or self._unwritten or not self._path.exists():
            self.now = changed
            self._write()

    def _write(self) -> None:
        before = self._unwritten
        try:
            records.write(self._path, self.now, mode=0o644)
            self._unwritten = ""
        except OSError as error:
            self._unwritten = error.strerror or str(error)
        if self._unwritten and self._unwritten != before:
            self._log.error("record not written", file=str(self._path), reason=self._unwritten)
        elif before and not self._unwritten:
            self._log.info("record written again", file=str(self._path))
