"""The records of the domains of this node: as every process reads them, and as `mpsd control` keeps each of them.

A record is read again only when its file has changed, and believed only while its daemon lives: no program may start on
a GPU whose daemon is gone, where no limit holds.
"""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import mpsd
from mpsd.model.domain import Domain, State
from mpsd.model.node_view import RECORD_VERSION, DomainRecord, is_of_boot
from mpsd.platform import processes, records
from mpsd.platform.logs import Logger
from mpsd.platform.processes import ProcessSet
from mpsd.platform.run_directory import DomainFolder


class DomainRecords:
    """Every `<run directory>/<domain>/record.json` of this boot."""

    def __init__(self, run_directory: Path, log: Logger) -> None:
        self._run_directory, self._log = run_directory, log
        self._seen: dict[Path, tuple[int, int]] = {}
        self._noticed: tuple[object, ...] = ()
        self._records: dict[Path, DomainRecord] = {}
        self._daemons = ProcessSet()
        self._listed = 0
        self._candidates: list[Path] = []
        self._unreadable: set[Path] = set()

    @property
    def unreadable(self) -> bool:
        """Whether the last `read` left out a record that cannot be read, whose daemon and servers are not known."""
        return bool(self._unreadable)

    def changed(self) -> bool:
        """Whether a file has come, gone or changed, or a daemon has died, since this was last asked."""
        self._daemons.ask()
        bereft = [one.domain for one in self._records.values() if self._is_bereft(one)]
        before, self._noticed = self._noticed, (self._look(), bereft)
        return self._noticed != before

    def _is_bereft(self, record: DomainRecord) -> bool:
        daemon = record.daemon
        return daemon is not None and daemon.pid not in self._daemons and not processes.is_alive(daemon)

    def read(self) -> tuple[DomainRecord, ...]:
        """By the domain's name."""
        found = self._look()
        for path, stamp in found.items():
            if self._seen.get(path) != stamp:
                self._read(path)
        self._seen = found
        self._unreadable &= found.keys()
        self._records = {path: record for path, record in self._records.items() if path in found}
        self._daemons.keep_only({one.daemon.pid for one in self._records.values() if one.daemon})
        self._daemons.ask()
        records_now = [self._as_it_is(record) for record in self._records.values()]
        return tuple(sorted(records_now, key=lambda record: [int(n) for n in re.findall("[0-9]+", record.domain)]))

    def _look(self) -> dict[Path, tuple[int, int]]:
        stamps = {}
        with suppress(FileNotFoundError):
            listed = self._run_directory.stat().st_mtime_ns
            if listed != self._listed:  # a domain's folder has come or gone
                self._candidates = [folder / "record.json" for folder in self._run_directory.glob("gpu*")]
                self._listed = listed
        for path in self._candidates:
            try:  # not by `suppress`: this is done a hundred times a second
                status = path.stat()
            except FileNotFoundError:
                continue
            stamps[path] = (status.st_ino, status.st_mtime_ns)
        return stamps

    def _read(self, path: Path) -> None:
        try:
            record = _read_of_this_boot(path)
        except records.UnreadableRecord as error:
            self._records.pop(path, None)
            self._log.warning("record ignored", reason=str(error))
            self._unreadable.add(path)
            return
        self._records.pop(path, None)
        self._unreadable.discard(path)
        if record and record.version == RECORD_VERSION:
            self._records[path] = record
            if record.daemon:
                self._daemons.add(record.daemon)

    def _as_it_is(self, record: DomainRecord) -> DomainRecord:
        """The record; for a daemon whose death is not recorded yet, with the state that follows."""
        if not self._is_bereft(record):
            return record
        reason = f"its control daemon ({record.daemon}) is gone, and mpsd control has not recorded it yet"
        return replace(record, state=State.DOWN, reason=reason, daemon=None, servers=())


def _read_of_this_boot(path: Path) -> DomainRecord | None:
    """None where there is none: another boot's pids and compute modes mean nothing now. UnreadableRecord."""
    record = records.read(path, DomainRecord)
    return record if record and is_of_boot(record, processes.boot_id()) else None


def of_this_boot(run_directory: Path) -> Iterator[tuple[DomainFolder, DomainRecord | records.UnreadableRecord]]:
    """The domains' folders, by name, with their records of this boot, or why one cannot be read."""
    for path in sorted(run_directory.glob("gpu*/record.json"), key=lambda path: (len(path.parent.name), path)):
        try:
            record: DomainRecord | records.UnreadableRecord | None = _read_of_this_boot(path)
        except records.UnreadableRecord as error:
            record = error
        if record:
            yield DomainFolder(path.parent), record


class KeptRecord:
    """The record of one domain, as its supervisor keeps it. now: on disk from the first change on.

    Where it cannot be written, as on a full disk, that is logged once, and tried again at each look.
    """

    def __init__(self, domain: Domain, folder: DomainFolder, log: Logger) -> None:
        self._path = folder.record
        self._log = log
        self._unwritten = ""  # why it is not on disk as it is now; empty where it is
        self._written: tuple[int, ...] = ()  # the file as it was written last
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
        """The record on disk, of this boot."""
        try:
            old = _read_of_this_boot(self._path)
        except records.UnreadableRecord as error:
            self._log.warning("record ignored", reason=str(error))
            return None
        return old if old and (old.version, old.gpus) == (RECORD_VERSION, self.now.gpus) else None

    def change(self, **fields: object) -> None:
        """The record with these fields, on disk too where that changes anything, or somebody has changed the file."""
        changed = replace(self.now, **fields)  # type: ignore[arg-type]
        if changed != self.now or self._unwritten or self._stamp() != self._written:
            self.now = changed
            before, self._unwritten = self._unwritten, ""
            try:
                records.write(self._path, changed, mode=0o644)
                self._written = self._stamp()
            except OSError as error:
                self._unwritten = error.strerror or str(error)
            if self._unwritten and self._unwritten != before:
                self._log.error("record not written", file=str(self._path), reason=self._unwritten)
            elif before and not self._unwritten:
                self._log.info("record written again", file=str(self._path))

    def _stamp(self) -> tuple[int, ...]:
        """Which file is there, and since when; empty where there is none."""
        with suppress(OSError):
            status = self._path.stat()
            return status.st_ino, status.st_mtime_ns, status.st_size
        return ()
