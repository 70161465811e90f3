"""Ends the clients of deleted pods before kubelet's signals do so in mid-kernel (`rules.pod_ends`).

What was seen of each deletion is kept on the node, so that the next agent goes on with the grace
that is left.
"""

import re
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mpsd.kubelet.rules import pod_ends as rules
from mpsd.kubelet.rules.node_pods import NodePod
from mpsd.kubelet.rules.pod_ends import PodEnd
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.policy import Graces, Policy
from mpsd.mps.ends import EndAsked, NotEnded, NotKilled
from mpsd.platform import clock, processes, records
from mpsd.platform.event_loop import Shortages
from mpsd.platform.kube_mirror import Mirror
from mpsd.platform.logs import Logger
from mpsd.watchdog.scanner import Scan
from mpsd.watchdog.watchdog import Watchdog

FILE = "pod_ends.json"  # below agent/ of the run directory
_REASON = "pod deleted"
_SIGNAL = re.compile(r"(?P<name>SIG[A-Z0-9]+)(?P<more>[+-][0-9]{1,2})?")  # such as SIGRTMIN+3


@dataclass(frozen=True, slots=True)
class _Record:
    """As it is on disk."""

    #: of the boot whose times these are
    boot_id: str
    ends: tuple[PodEnd, ...]


@dataclass(slots=True)
class PodEnds:
    """The ends of this node's pods."""

    file: Path
    #: of this node; `see` is told of each change of one
    pods: Mirror[NodePod]
    watchdog: Watchdog
    policy: Callable[[], Policy]
    log: Logger
    #: by the pod's uid
    _ends: dict[str, PodEnd] = field(default_factory=dict)
    #: the uids that an earlier agent has recorded, and that the API server has not named since
    _unheard: set[str] = field(default_factory=set)
    #: what the file has
    _kept: tuple[PodEnd, ...] = ()
    #: the watchdog's last; None before its first, until which an earlier mpsd's ends are resumed
    _scan: Scan | None = None
    #: what was looked at last
    _looked_at: tuple[object, ...] = ()
    #: when to look again where that has not changed, in seconds of CLOCK_BOOTTIME
    _next_s: float = 0.0
    #: whether a client dies of a first signal, as it was when it was first seen in its pod's end
    _mortal: dict[ProcessIdentity, bool] = field(default_factory=dict)
    #: the clients whose end has begun, as long as they are seen
    _begun: set[ProcessIdentity] = field(default_factory=set)
    #: why the end of a client has not begun, as logged last
    _failed: dict[ProcessIdentity, str] = field(default_factory=dict)
    #: by the pod's uid, when its clients are stopped, as logged last
    _reported: dict[str, float] = field(default_factory=dict)
    _shortages: Shortages = field(init=False)

    def __post_init__(self) -> None:
        self._shortages = Shortages(self.log)

    def load(self) -> None:
        """Reads what an earlier agent saw in this boot. Where that is unknown, no deleted pod has
        any grace left."""
        try:
            found = records.read(self.file, _Record)
        except (records.UnreadableRecord, OSError) as error:
            self.log.warning("pod ends unreadable", file=str(self.file), reason=str(error))
            return
        if found and found.boot_id == processes.boot_id():
            self._kept = found.ends
            self._ends = {end.pod.uid: end for end in found.ends}
            self._unheard = {end.pod.uid for end in found.ends if end.removed_s is None}

    @property
    def _drain_s(self) -> float:
        """For how long a client's queue may run; 0 where deleted pods are left to kubelet."""
        policy = self.policy()
        return policy.graces.end_drain_s if policy.pod_ends else 0.0

    # -- what is seen of pods

    def see(self, before: NodePod | None, now: NodePod | None) -> None:
        """None where it is not there."""
        if not self._drain_s:
            return
        now_s = clock.boot_s()
        was_running = False
        if before:
            pod = before.identity
            if now and now.identity == pod:
                was_running = before.deletion is None
            else:
                self._put(rules.removed(self._ends.get(pod.uid), pod, now_s))
        if now:
            self._unheard.discard(now.uid)
            if now.deletion:
                known = self._ends.get(now.uid)
                end = rules.deleted(
                    known, now.identity, now.deletion, now_s, was_running=was_running
                )
                self._put(end)

    def _put(self, end: PodEnd) -> None:
        if end != self._ends.get(end.pod.uid):
            self._ends[end.pod.uid] = end
            self._looked_at = ()
            self._look_at_once()

    def _settle(self, now_s: float) -> None:
        """Notes which pods were removed while no agent ran, and forgets those that are over."""
        if self._unheard and self.pods.synced:
            for uid in self._unheard & self._ends.keys():
                end = self._ends[uid]
                self._ends[uid] = rules.removed(end, end.pod, now_s)
            self._unheard.clear()
            self._looked_at = ()
        for uid, end in list(self._ends.items()):
            if rules.is_over(end, now_s):
                del self._ends[uid]
                self._reported.pop(uid, None)

    def _keep(self) -> None:
        """Writes what has changed."""
        ends = tuple(self._ends.values())
        if ends == self._kept:
            return
        self._kept = ends
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            records.write(self.file, _Record(processes.boot_id(), ends))
        except OSError as error:  # only an agent that is started meanwhile misses it
            self.log.warning("pod ends not recorded", file=str(self.file), reason=str(error))

    # -- what is done

    def _look_at_once(self) -> None:
        """Waits for no scan: kubelet's first signal comes 10 to 30 ms after the change."""
        if self._scan:
            with self._shortages.survived("pod ends"):
                self.look(self._scan)

    def look(self, scan: Scan) -> None:
        """Stops the clients whose time it is. For each scan of the watchdog."""
        self._scan = scan
        if not self._drain_s:
            self._ends.clear()
        if not (self._ends or self._kept):
            return
        now_s = clock.boot_s()
        policy = self.policy()
        self._settle(now_s)
        if (scan, policy) != self._looked_at or now_s >= self._next_s:
            self._looked_at = (scan, policy)
            self._end_due(scan, now_s, policy.graces)
        self._keep()

    def _end_due(self, scan: Scan, now_s: float, graces: Graces) -> None:
        clients = [one for one in scan.clients if one.pod in self._ends and one.on_mps]
        self._judge(clients)
        mortal = {process for process, dies in self._mortal.items() if dies}
        due = rules.due_clients(self._ends, clients, mortal, now_s, graces.pod_end_s)
        self._next_s = due.next_s
        own = self.watchdog.own(scan) if due.clients else frozenset[ProcessIdentity]()
        pods = {client.pod or "" for client in clients if client.process not in self._begun}
        for client in due.clients:
            if client.process not in own | self._begun:
                is_doomed = client.process in mortal
                self._end(EndAsked(client, _REASON, graces.end_drain_s, is_doomed=is_doomed))
        self._tell(pods, now_s, graces.pod_end_s)

    def _judge(self, clients: Iterable[Client]) -> None:
        """Asks once of each client what a first signal does to it, and forgets who is gone."""
        known = self._mortal
        self._mortal = {}
        for client in clients:
            process = client.process
            end = self._ends[client.pod or ""]
            if process in known:
                self._mortal[process] = known[process]
            elif not end.has_pre_stop:
                signals = _first_signals(end)
                self._mortal[process] = any(processes.dies_of(process, one) for one in signals)
        seen = {client.process for client in clients}
        self._begun &= seen
        for process in self._failed.keys() - seen:
            del self._failed[process]

    def _tell(self, pods: Iterable[str], now_s: float, pod_end_s: float) -> None:
        """Logs when the clients of these pods, by uid, are stopped."""
        for uid in pods:
            end = self._ends[uid]
            at_s = rules.stop_at_s(end, pod_end_s)
            if self._reported.get(uid) != at_s:
                self._reported[uid] = at_s
                left_s = round(max(0.0, at_s - now_s), 1)
                about = {"grace_s": end.grace_s, "removed": end.removed_s is not None}
                self.log.info("pod end begun", pod=str(end.pod), uid=uid, stop_in_s=left_s, **about)

    def _end(self, asked: EndAsked) -> None:
        client = asked.client
        try:
            self.watchdog.ends.begin(asked)
        except NotEnded as error:
            self._next_s = 0.0  # the next scan tries again, as long as it is there
            self._tell_failure(client, error)
        else:
            self._begun.add(client.process)

    def _tell_failure(self, client: Client, error: NotEnded) -> None:
        """Once for each reason."""
        if self._failed.get(client.process) != str(error):
            self._failed[client.process] = str(error)
            tell = self.log.warning if isinstance(error, NotKilled) else self.log.info
            tell("not ended", pid=client.pid, reason=str(error))


def _first_signals(end: PodEnd) -> set[int]:
    """The numbers of the signals with which kubelet may begin; names unknown here are left out."""
    found = {int(signal.SIGTERM)}
    for name in end.stop_signals:
        parts = _SIGNAL.fullmatch(name)
        if parts and parts["name"] in signal.Signals.__members__:
            found.add(signal.Signals[parts["name"]] + int(parts["more"] or 0))
    return found
