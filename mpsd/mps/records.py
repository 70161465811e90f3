"""The records of this node's domains, as all read them and `mpsd control` keeps them, and which
domains there are to be. A record is believed while its daemon lives: without one no limit holds."""

import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import mpsd
from mpsd.model.domain import ENDED, Domain, DomainKind, Groups, State, domains, regrouped
from mpsd.model.grants import Gpu
from mpsd.model.node_view import RECORD_VERSION, DomainRecord
from mpsd.model.policy import Policy
from mpsd.platform import clock, processes, records
from mpsd.platform.logs import Logger
from mpsd.platform.processes import ProcessSet
from mpsd.platform.run_directory import DomainFolder


class _OfBoot(Protocol):
    @property
    def boot_id(self) -> str: ...


Kept = TypeVar("Kept", bound=_OfBoot)


def read_of_this_boot(path: Path, kind: type[Kept]) -> Kept | None:
    """None where there is none: pids and modes of another boot mean nothing. UnreadableRecord."""
    found = records.read(path, kind)
    if found is None or found.boot_id != processes.boot_id():
        return None
    return found


class RecordFile(Generic[Kept]):
    """One such file, read again only where it is another than before."""

    def __init__(self, path: Path, kind: type[Kept], log: Logger) -> None:
        self.path = path
        self._kind = kind
        self._log = log
        self._stamp: tuple[int, ...] = ()
        self._value: Kept | None = None
        self.is_unreadable = False

    @property
    def is_another(self) -> bool:
        """Than was read or written last."""
        return _stamp(self.path) != self._stamp

    def read(self) -> Kept | None:
        """None also where it cannot be read, which is logged once. OSError in a shortage."""
        if not self.is_another:
            return self._value
        stamp = _stamp(self.path)
        value = None
        is_unreadable = False
        try:
            value = read_of_this_boot(self.path, self._kind)
        except records.UnreadableRecord as error:
            self._log.warning("record ignored", reason=str(error))
            is_unreadable = True
        # not before: after a shortage it is read again
        self._stamp = stamp
        self._value = value
        self.is_unreadable = is_unreadable
        return value

    def write(self, value: Kept | None, mode: int = 0o600) -> None:
        """None: removes it. OSError."""
        if value is None:
            self.path.unlink(missing_ok=True)
        else:
            records.write(self.path, value, mode)
        self._stamp = _stamp(self.path)
        self._value = value
        self.is_unreadable = False


def _by_number(domain: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", domain)]


class DomainRecords:
    """Every `<run directory>/<domain>/record.json` of this boot."""

    def __init__(self, run_directory: Path, log: Logger) -> None:
        self._run_directory = run_directory
        self._log = log
        self._listed = 0
        self._files: dict[Path, RecordFile[DomainRecord]] = {}
        self._noticed: tuple[object, ...] = ()
        self._records: list[DomainRecord] = []
        self._gpus: dict[Path, tuple[str, ...]] = {}  # by record, when it was read last
        self._daemons = ProcessSet()

    def doubtful(self, everywhere: Collection[str]) -> set[str]:
        """The GPUs whose records the last `read` left out as unreadable, so that nobody knows their
        daemons: as they were read before, else all of `everywhere`."""
        found = set[str]()
        for path, file in self._files.items():
            if file.is_unreadable:
                found.update(self._gpus.get(path, everywhere))
        return found

    def changed(self) -> bool:
        """Whether a file has come, gone or changed, or a daemon died, since the last call."""
        self._list()
        self._daemons.ask()
        bereft = [one.domain for one in self._records if self._is_bereft(one)]
        before = self._noticed
        self._noticed = ([*map(_stamp, self._files)], bereft)
        return self._noticed != before

    def _is_bereft(self, record: DomainRecord) -> bool:
        daemon = record.daemon
        if daemon is None or daemon.pid in self._daemons:
            return False
        return not processes.is_alive(daemon)

    def read(self) -> tuple[DomainRecord, ...]:
        """By the domain's name."""
        self._list()
        self._records = []
        pids = set()
        for path, file in self._files.items():
            record = file.read()
            if record is None or record.version != RECORD_VERSION:
                continue
            self._records.append(record)
            self._gpus[path] = record.gpus
            if record.daemon:
                pids.add(record.daemon.pid)
                self._daemons.add(record.daemon)
        self._daemons.keep_only(pids)
        self._daemons.ask()
        return tuple(map(self._as_it_is, self._records))

    def _list(self) -> None:
        with suppress(FileNotFoundError):
            listed = self._run_directory.stat().st_mtime_ns
            if listed == self._listed:
                return
            files = {}  # a domain's folder has come or gone
            folders = self._run_directory.glob("gpu*")
            for folder in sorted(folders, key=lambda path: _by_number(path.name)):
                path = folder / "record.json"
                known = self._files.get(path)
                files[path] = known or RecordFile(path, DomainRecord, self._log)
            self._files = files
            self._listed = listed

    def _as_it_is(self, record: DomainRecord) -> DomainRecord:
        """The record; for a daemon whose death is not recorded yet, with the state that follows.
        mpsd ends those of drained domains itself."""
        if not self._is_bereft(record):
            return record
        if record.state is State.DRAINED:
            return replace(record, daemon=None, servers=())
        reason = f"its control daemon ({record.daemon}) is gone, which is not recorded yet"
        return replace(record, state=State.DOWN, reason=reason, daemon=None, servers=())


def of_this_boot(
    run_directory: Path,
) -> Iterator[tuple[DomainFolder, DomainRecord | records.UnreadableRecord]]:
    """The domains' folders, by name, with their records of this boot, or why one is unreadable."""
    paths = run_directory.glob("gpu*/record.json")
    for path in sorted(paths, key=lambda path: _by_number(path.parent.name)):
        folder = DomainFolder(path.parent)
        try:
            if record := read_of_this_boot(folder.record, DomainRecord):
                yield folder, record
        except records.UnreadableRecord as error:
            yield folder, error


def domain_of(record: DomainRecord) -> Domain:
    """kind: LISTED where another mpsd has written one that is not known here."""
    kind = DomainKind.LISTED
    with suppress(ValueError):
        kind = DomainKind(record.kind)
    return Domain(record.domain, record.gpus, kind)


class KeptRecord:
    """The record of one domain, on disk from the first change on. A failed write is logged once,
    and tried again at each look."""

    def __init__(self, domain: Domain, folder: DomainFolder, log: Logger) -> None:
        self._path = folder.record
        self._log = log
        self._unwritten = ""  # why it is not on disk as it is now; empty where it is
        self._written: tuple[int, ...] = ()  # the file as it was written last
        # when its state began, in seconds of CLOCK_BOOTTIME
        self.since_s = clock.boot_s()
        self.now = DomainRecord(
            version=RECORD_VERSION,
            domain=domain.name,
            gpus=domain.gpus,
            state=State.DOWN,
            since=clock.wall_s(),
            reason="",
            daemon=None,
            servers=(),
            restarts=0,
            restarts_total=0,
            started_s=0.0,
            compute_modes={},
            boot_id=processes.boot_id(),
            written_by=mpsd.__version__,
            kind=domain.kind.value,
        )

    def earlier(self) -> DomainRecord | None:
        """The record on disk, of this boot."""
        try:
            old = read_of_this_boot(self._path, DomainRecord)
        except records.UnreadableRecord as error:
            self._log.warning("record ignored", reason=str(error))
            return None
        if old and (old.version, old.gpus) == (RECORD_VERSION, self.now.gpus):
            return old
        return None

    def change(self, **fields: object) -> None:
        """Writes the record where these fields change it, or somebody changed the file."""
        changed = replace(self.now, **fields)  # type: ignore[arg-type]
        before = self._unwritten
        with suppress(OSError):  # then it is written anew
            if changed == self.now and not before and _stamp(self._path) == self._written:
                return
        if changed.state is not self.now.state:
            self.since_s = clock.boot_s()
        self.now = changed
        self._unwritten = ""
        try:
            records.write(self._path, changed, mode=0o644)
            self._written = _stamp(self._path)
        except OSError as error:
            self._unwritten = error.strerror or str(error)
        if self._unwritten and self._unwritten != before:
            self._log.error("record not written", file=str(self._path), reason=self._unwritten)
        elif before and not self._unwritten:
            self._log.info("record written again", file=str(self._path))


def _stamp(path: Path) -> tuple[int, ...]:
    """Which file is there, and since when; empty where there is none. OSError."""
    try:  # not by `suppress`: this is done a hundred times a second
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


# -- which domains there are to be

# after its last grant, before a joined domain is divided though nobody wants one of its GPUs alone
_IDLE_S = 10.0
DOMAINS_FILE = "domains.json"  # in the run directory


@dataclass(frozen=True, slots=True)
class JoinedGroups:
    """DOMAINS_FILE: the GPUs that are joined on demand in this boot."""

    boot_id: str
    groups: Groups


class NodeDomains:
    """The domains that a node is to have: those of the policy, and those joined on demand. The
    agent decides on the latter and writes them down; `mpsd control` follows."""

    def __init__(
        self, run_directory: Path, gpus: Sequence[Gpu], policy: Policy, log: Logger
    ) -> None:
        """InvalidInput where the policy names a GPU that is not there; it counts as it is now."""
        self._run_directory = run_directory
        self._file = RecordFile(run_directory / DOMAINS_FILE, JoinedGroups, log)
        self.gpus = gpus
        self._asked = policy
        self._policy = policy
        self._log = log
        self._groups: Groups = ()  # as they were read or written last
        self._idle_since: dict[tuple[str, ...], float] = {}
        self._leave_out_divided()
        # every: with those whose GPUs are gone, until they have ended
        self.now = self.every = domains(gpus, self._policy)
        self.look()

    @property
    def joined(self) -> Groups:
        return tuple(domain.gpus for domain in self.now if domain.kind is DomainKind.JOINED)

    def look(self) -> None:
        """Reads what was last written; if it cannot, the domains of `mpsd control` stay."""
        if not self._file.is_another:
            return
        groups: Groups = ()
        if found := self._file.read():
            groups = found.groups
        elif self._file.is_unreadable:
            for _folder, record in of_this_boot(self._run_directory):
                if isinstance(record, DomainRecord) and record.kind == DomainKind.JOINED:
                    groups = (*groups, record.gpus)
        self._take(groups)

    def _take(self, groups: Groups) -> None:
        self._groups = groups
        if (found := domains(self.gpus, self._policy, groups)) != self.now:
            self.every = (*found, *self.every[len(self.now) :])
            self.now = found

    def follow(self, gpus: Sequence[Gpu]) -> None:
        """Has domains of these GPUs from now on: the MIG layout of one may have changed."""
        if gpus is self.gpus:
            return
        before = {gpu.uuid: gpu.label for gpu in self.gpus}
        now = {gpu.uuid: gpu.label for gpu in gpus}
        new = [now[uuid] for uuid in now if uuid not in before]
        gone = [before[uuid] for uuid in before if uuid not in now]
        self._log.info("GPUs changed", new=new, gone=gone)
        self.gpus = gpus
        self._leave_out_divided()
        self._take(self._groups)

    def _leave_out_divided(self) -> None:
        """What the policy lists together with a GPU that has MIG instances now is not together."""
        divided = {gpu.ordinal for gpu in self.gpus if gpu.instance}
        kept = [group for group in self._asked.domains if divided.isdisjoint(group)]
        left_out = [one for one in self._asked.domains if one not in kept]
        if left_out and kept != self._policy.domains:
            reason = "MIG instances share a daemon with no GPU"
            self._log.warning("domains left out", domains=left_out, reason=reason)
        self._policy = replace(self._asked, domains=kept)

    def keep_gone(self, records: Iterable[DomainRecord]) -> None:
        """Counts domains without a GPU here among `every`, as long as they have records."""
        every = (*self.now, *map(domain_of, filter(self.is_gone, records)))
        if every != self.every:
            self.every = every

    def is_gone(self, record: DomainRecord) -> bool:
        """Whether none of its GPUs is here any more."""
        return self._uuids.isdisjoint(record.gpus)

    @property
    def _uuids(self) -> set[str]:
        return {gpu.uuid for gpu in self.gpus}

    def ends(self, record: DomainRecord) -> bool:
        """Whether `mpsd control` ends it. One without GPUs stays until its programs have ended."""
        return self.replaced(record) and (record.state in ENDED or not self.is_gone(record))

    # -- for the agent alone

    def keep(self) -> None:
        """Writes them again where the file was changed, removed or cannot be read. OSError."""
        if self._file.is_another or self._file.is_unreadable:
            self._write(self.joined)

    def planned(self, wanted: Collection[str], held: Collection[str]) -> tuple[Domain, ...] | None:
        """The domains with these GPUs in one; None as of `regrouped`."""
        groups = regrouped(wanted, self.now, held)
        if groups is None:
            return None
        return domains(self.gpus, self._policy, groups)

    def form(self, wanted: Collection[str], held: Collection[str]) -> bool:
        """Has these GPUs in one domain from now on; False where they cannot be joined. OSError."""
        groups = regrouped(wanted, self.now, held)
        if groups is not None and set(groups) != set(self.joined):
            self._write(groups)
        return groups is not None

    def divide_idle(self, held: Collection[str]) -> None:
        """Divides joined domains in which no grant was `held` for a while, but those to be drained.
        OSError."""
        now = time.monotonic()
        idle = self._unused(held)
        self._idle_since = {group: self._idle_since.get(group, now) for group in idle}
        self._divide(group for group, since in self._idle_since.items() if now - since >= _IDLE_S)

    def divide(self, held: Collection[str]) -> None:
        """Divides every joined domain in which nobody holds a grant, now. OSError."""
        self._divide(self._unused(held))

    def _unused(self, held: Collection[str]) -> Iterator[tuple[str, ...]]:
        for domain in self.now:
            is_free = domain.kind is DomainKind.JOINED and set(domain.gpus).isdisjoint(held)
            folder = DomainFolder(self._run_directory / domain.name)
            if is_free and not folder.drain.exists():
                yield domain.gpus

    def _divide(self, groups: Iterable[tuple[str, ...]]) -> None:
        if over := set(groups):
            self._write(tuple(group for group in self.joined if group not in over))

    def _write(self, groups: Groups) -> None:
        written = None
        if groups:
            written = JoinedGroups(processes.boot_id(), groups)
        self._file.write(written, mode=0o644)
        before = {domain.name for domain in self.now}
        self._take(groups)
        named = {domain.name for domain in self.now} - before
        if named:
            self._log.info("domains changed", new=sorted(named))

    def replaced(self, record: DomainRecord) -> bool:
        """Whether it is to end, since its GPUs are of others now, or one is gone."""
        if not self._uuids.issuperset(record.gpus):
            return True
        if record.kind == DomainKind.JOINED:
            return record.gpus not in self.joined
        joined = {uuid for group in self.joined for uuid in group}
        return record.kind == DomainKind.ALONE and not joined.isdisjoint(record.gpus)
