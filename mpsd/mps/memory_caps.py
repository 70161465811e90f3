"""Sets memory limits of cgroups by NVML, reads them back and removes them. The agent, which knows
every grant, writes down what is wanted; `mpsd control`, which has the rights, what is in force.
Nothing is written into `dmem.*`: NVML knows its key of a GPU."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mpsd.model.grants import is_instance
from mpsd.model.node_view import CAP_HOLDS, DomainRecord, LedgerView
from mpsd.model.policy import MemoryCap, Policy
from mpsd.mps.records import RecordFile
from mpsd.mps.rules.memory_caps import (
    CANARY_FOUND,
    NOT_SET,
    CapActions,
    CappedGrant,
    CapsInForce,
    FoundCgroup,
    WantedCap,
    WantedCaps,
    wanted_caps,
    why_never,
)
from mpsd.mps.rules.memory_caps import decide as decide_caps
from mpsd.platform import processes
from mpsd.platform.containers import let_count, v2_tree
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.rules.cgroups import node_cgroup, pod_of_cgroup

WANTED, IN_FORCE = "memory-caps-wanted.json", "memory-caps.json"  # in the run directory
# of a pod's cgroup below the node's: a slice of kubelet's, kubepods, the class, the pod
_POD_DEPTH = 4
_READ_AGAIN = 60  # looks between two at which limits are read back that were set before


@dataclass(frozen=True, slots=True)
class CapProbe:
    """Whether memory limits of cgroups can be set. tree: where the host's cgroups are mounted."""

    nvml: Nvml
    tree: Path

    @property
    def no_tree(self) -> str:
        return f"cgroup v2 is not mounted at {self.tree}"

    def why_not(self, gpus: Iterable[str]) -> str:
        """Why not on these GPUs; empty where the driver has the functions. NvmlFailed."""
        root = v2_tree(self.tree)
        for uuid in gpus:
            if is_instance(uuid):
                return f"NVML sets no memory limits of cgroups for MIG instances such as {uuid}"
            if root is None:
                return self.no_tree
            if why := _too_old(self.nvml, uuid, root):
                return why
        return ""

    def set(self, gpu: str, folder: Path, memory_mib: int) -> None:
        """Sets a cgroup's limit and reads it back. NvmlFailed."""
        self.nvml.limit_memory(gpu, folder, memory_mib)
        found = self.nvml.memory_limit_mib(gpu, folder)
        if found != memory_mib:
            raise NvmlFailed(f"a cgroup's limit of {memory_mib} MiB reads back as {found}")

    @contextmanager
    def limited(self, name: str, gpu: str, memory_mib: int) -> Iterator[tuple[str, ...]]:
        """A cgroup with this limit; yields a prefix for commands to run in it. NvmlFailed,
        OSError."""
        root = v2_tree(self.tree)
        if root is None:
            raise FileNotFoundError(self.no_tree)
        folder = root / "mpsd" / name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            let_count(root, folder)
            self.set(gpu, folder, memory_mib)
            yield "/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(folder / "cgroup.procs")
        finally:
            with suppress(NvmlFailed):
                self.nvml.limit_memory(gpu, folder, None)
            for each in (folder, folder.parent):
                with suppress(OSError):
                    each.rmdir()


def _too_old(nvml: Nvml, gpu: str, cgroup: Path) -> str:
    """Why the driver sets no limits at all; empty where it can. NvmlFailed for a lost GPU."""
    if nvml.has_memory_limits(gpu, cgroup):
        return ""
    return (
        f"driver {nvml.driver()} has no memory limits of cgroups, which came with 615 (CUDA 13.4)"
    )


class CapFiles:
    """The files between the agent and `mpsd control`."""

    def __init__(self, run_directory: Path, log: Logger) -> None:
        self._wanted = RecordFile(run_directory / WANTED, WantedCaps, log)
        self._in_force = RecordFile(run_directory / IN_FORCE, CapsInForce, log)

    def ask(self, wanted: WantedCaps) -> None:
        """Writes it where it is another. OSError."""
        if wanted != self.wanted() and (wanted.caps or self._wanted.path.exists()):
            self._wanted.write(wanted)

    def wanted(self) -> WantedCaps | None:
        """None where nobody has asked in this boot, or it cannot be read: then all stays as is."""
        return self._wanted.read()

    def in_force(self) -> CapsInForce:
        return self._in_force.read() or CapsInForce(processes.boot_id())

    def put(self, caps: CapsInForce) -> None:
        """OSError."""
        if caps != self.in_force():
            self._in_force.write(caps, mode=0o644)

    def clear(self) -> None:
        for one in (self._wanted, self._in_force):
            one.path.unlink(missing_ok=True)


class CapRequests:
    """The agent's part: asks for limits of the grants that can have one, and knows the outcome."""

    def __init__(self, files: CapFiles, nvml: Nvml, policy: Callable[[], Policy]) -> None:
        self._files = files
        self._nvml = nvml
        self._policy = policy
        # None until NVML has said; it stays, for a driver outlives who uses it
        self._too_old: str | None = None
        self._judged: tuple[LedgerView, MemoryCap] | None = None  # what the two below were made of
        self._never: Mapping[str, str] = {}  # by grant, why it can have none
        self._wanted: WantedCaps | None = None  # None: to be made anew

    def ask(self, ledger: LedgerView, *, pods_known: bool) -> None:
        """Writes down what is to be held, made anew only from another ledger or policy. OSError."""
        never = self._reasons(ledger)
        if self._wanted is None:
            held = tuple(one for one in ledger.held if one.grant.id not in never)
            self._wanted = wanted_caps(
                replace(ledger, held=held), processes.boot_id(), pods_known=pods_known
            )
        self._files.ask(self._wanted)

    def _reasons(self, ledger: LedgerView) -> Mapping[str, str]:
        policy = self._policy().memory_cap
        if self._judged and self._judged[0] is ledger and self._judged[1] == policy:
            return self._never
        why_not = self._why_not(ledger.gpus)
        never = {}
        for held in ledger.held:
            if why := why_never(policy, held.grant.gpus, why_not):
                never[held.grant.id] = why
        self._never = never
        self._judged = (ledger, policy)
        self._wanted = None
        return never

    def _why_not(self, gpus: Collection[str]) -> Mapping[str, str]:
        for gpu in gpus:
            if self._too_old is None:
                with suppress(NvmlFailed):
                    self._too_old = _too_old(self._nvml, gpu, Path("/"))
        if not self._too_old:
            return {}
        return dict.fromkeys(gpus, self._too_old)

    def in_force(self, ledger: LedgerView) -> tuple[frozenset[str], Mapping[str, str]]:
        """The grants whose cgroups hold them, and by grant why another's do not."""
        found = self._files.in_force()
        reasons = {**(found.troubles or {}), **self._reasons(ledger)}
        for grant in found.grants:
            reasons.pop(grant, None)
        return frozenset(found.grants), reasons


class MemoryCaps:
    """Follows what the agent asks. A limit that was read back outlives this process."""

    def __init__(
        self, files: CapFiles, probe: CapProbe, policy: Callable[[], Policy], log: Logger
    ) -> None:
        self._files = files
        self._probe = probe
        self._policy = policy
        self._log = log
        self._ours = {cap.place: cap for cap in files.in_force().caps}
        self._pods: dict[str, Path] = {}  # by uid, its cgroup
        self._looks = _READ_AGAIN
        self._troubles: dict[str, str] = {}

    def follow(self, domains: Collection[DomainRecord]) -> None:
        """Looks, decides and acts once. OSError where the outcome cannot be written down."""
        wanted = self._files.wanted()
        root = v2_tree(self._probe.tree)
        if wanted is None or not (wanted.caps or self._ours):
            return
        if root is None:
            troubles = {one.grant: self._probe.no_tree for one in wanted.caps}
            self._files.put(CapsInForce(processes.boot_id(), troubles=troubles))
            return
        self._drop(root)
        grants = [CappedGrant(one, tuple(self._find(one, root))) for one in wanted.caps]
        why_not = self._why_not({gpu for one in wanted.caps for gpu in one.memory_mib}, domains)
        policy = self._policy().memory_cap
        actions = decide_caps(
            policy, grants, self._ours.values(), why_not, complete=wanted.complete
        )
        failed = self._act(actions, root)
        troubles = dict(actions.without)
        for grant in grants:
            if failures := [failed[cap.place] for cap in grant.caps() if cap.place in failed]:
                troubles.setdefault(grant.wanted.grant, failures[0])
        self._tell(troubles)
        held = tuple(one.grant for one in wanted.caps if one.grant not in troubles)
        caps = tuple(self._ours.values())
        self._files.put(CapsInForce(processes.boot_id(), caps, held, troubles or None))

    def end(self) -> None:
        """Takes away whatever mpsd has set."""
        if self._ours and (root := v2_tree(self._probe.tree)):
            self._drop(root)
            self._act(CapActions(tuple(self._ours.values()), (), {}), root)
        self._files.clear()

    # -- look

    def _drop(self, root: Path) -> None:
        """Forgets cgroups that are gone, limits and all; now and then also what NVML lacks."""
        self._looks += 1
        reads_back = self._looks >= _READ_AGAIN
        if reads_back:
            self._looks = 0
        for place, cap in tuple(self._ours.items()):
            folder = _folder(root, cap.cgroup)
            if _inode(folder) != cap.inode:
                del self._ours[place]
            elif reads_back:
                with suppress(NvmlFailed):
                    found = self._probe.nvml.memory_limit_mib(cap.gpu, folder)
                    del self._ours[place]
                    if found is not None:
                        self._ours[place] = replace(cap, memory_mib=found)

    def _why_not(self, gpus: Collection[str], domains: Collection[DomainRecord]) -> dict[str, str]:
        """By GPU: the driver has no such functions, or the canary found that they hold nobody."""
        canaries = {gpu: one.canary for one in domains for gpu in one.gpus if one.canary}
        found = {}
        for gpu in gpus:
            try:
                why = self._probe.why_not([gpu])
                canary = canaries.get(gpu)
                is_now = canary and canary.driver == self._probe.nvml.driver()
                if not why and canary and is_now and canary.memory_cap not in {"", CAP_HOLDS}:
                    why = f"{CANARY_FOUND}: {canary.memory_cap}"
            except NvmlFailed as error:
                why = str(error)
            if why:
                found[gpu] = why
        return found

    def _find(self, wanted: WantedCap, root: Path) -> Iterator[FoundCgroup]:
        for path in wanted.cgroups:
            if ".." not in path.split("/") and (found := _found(root, _folder(root, path))):
                yield found
        for uid in wanted.pods:
            if (pod := self._pod(uid, root)) and (found := _found(root, pod)):
                yield found
                for each in _folders_in(pod):
                    if inner := _found(root, each, inside=True):
                        yield inner

    def _pod(self, uid: str, root: Path) -> Path | None:
        """The cgroup of the pod with this uid in its path."""
        if uid not in self._pods or not self._pods[uid].is_dir():
            self._pods = _pod_folders(root)
        return self._pods.get(uid)

    # -- act

    def _act(self, actions: CapActions, root: Path) -> dict[tuple[str, int, str], str]:
        """By place, why a limit could not be set."""
        failed: dict[tuple[str, int, str], str] = {}
        for cap in actions.resets:
            try:
                self._probe.nvml.limit_memory(cap.gpu, _folder(root, cap.cgroup), None)
                self._log.info("memory cap removed", cgroup=cap.cgroup, gpu=cap.gpu)
            except NvmlFailed as error:
                if _inode(_folder(root, cap.cgroup)) == cap.inode:
                    about = {"cgroup": cap.cgroup, "gpu": cap.gpu}
                    self._log.warning("memory cap not removed", **about, reason=str(error))
                    continue
            self._ours.pop(cap.place, None)
        for cap in actions.sets:
            folder = _folder(root, cap.cgroup)
            try:
                self._probe.set(cap.gpu, folder, cap.memory_mib)
                self._ours[cap.place] = cap
                self._log.info(
                    "memory cap set", cgroup=cap.cgroup, gpu=cap.gpu, memory_mib=cap.memory_mib
                )
            except NvmlFailed as error:
                failed[cap.place] = f"{NOT_SET} {cap.cgroup} could not be set: {error}"
        return failed

    def _tell(self, troubles: dict[str, str]) -> None:
        """Each reason once, not for each grant."""
        known = set(self._troubles.values())
        for why in dict.fromkeys(troubles.values()):
            if why not in known:
                self._log.info("held by MPS's own limit alone", reason=why)
        self._troubles = troubles


def _folder(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _inode(folder: Path) -> int:
    """0 where there is no such folder."""
    try:
        return folder.stat().st_ino
    except OSError:
        return 0


def _found(root: Path, folder: Path, *, inside: bool = False) -> FoundCgroup | None:
    inode = _inode(folder)
    if not inode:
        return None
    counts = (folder / "dmem.max").exists()
    return FoundCgroup(f"/{folder.relative_to(root)}", inode, inside, counts)


def _folders_in(folder: Path) -> list[Path]:
    with suppress(OSError):
        found = [each for each in os.scandir(folder) if each.is_dir(follow_symlinks=False)]
        return [Path(each.path) for each in found]
    return []


def _pod_folders(root: Path) -> dict[str, Path]:
    """By uid, the cgroup of every pod of this node: it is the outermost below the node's own."""
    node = node_cgroup(Path("/proc/self/cgroup").read_text())
    found: dict[str, Path] = {}
    level = [_folder(root, node)]
    for _depth in range(_POD_DEPTH + 1):
        below = [each for folder in level for each in _folders_in(folder)]
        level = []
        for folder in below:
            if uid := pod_of_cgroup(f"0::/{folder.relative_to(root)}", node):
                found[uid] = folder
            else:
                level.append(folder)
    return found
