"""Ends the clients of deleted pods before kubelet's signals do so in mid-kernel (`rules.pod_ends`).

What was seen of each deletion is kept on the node, so that the next agent goes on with the grace that is left.
"""

import re
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from mpsd.kubelet.rules import pod_ends as rules
from mpsd.kubelet.rules.node_pods import Bystander, NodePod
from mpsd.kubelet.rules.pod_ends import PodEnd
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.policy import Graces, Policy
from mpsd.mps.ends import EndAsked, NotEnded, NotKilled
from mpsd.platform import processes, records
from mpsd.platform.event_loop import Shortages, Throttle
from mpsd.platform.kube_mirror import Mirror
from mpsd.platform.logs import Logger
from mpsd.watchdog.scanner import Scan
from mpsd.watchdog.watchdog import Watchdog

FILE = "pod_ends.json"  # below agent/ of the run directory
_REASON = "pod deleted"
_SIGNAL = re.compile(r"(?P<name>SIG[A-Z0-9]+)(?P<more>[+-][0-9]{1,2})?")  # such as SIGUSR1, SIGRTMIN+3


@dataclass(frozen=True, slots=True)
class _Record:
    """As it is on disk."""

    #: of the boot whose times these are
    boot_id: str
    ends: tuple[PodEnd, ...]


class PodEnds:
    """The ends of this node's pods. pods: those of this node, whose changes `see` is told."""

    def __init__(
        self,
        file: Path,
        pods: Mirror[NodePod | Bystander],
        watchdog: Watchdog,
        policy: Callable[[], Policy],
        log: Logger,
    ) -> None:
        self._file, self._pods, self._watchdog, self._policy, self._log = file, pods, watchdog, policy, log
        self._shortages = Shortages(log)
        self._look_soon = Throttle(self._look_again, 0.0)  # one look for all changes that come together
        self._scan: Scan | None = None  # the watchdog's last; before its first the ends of an earlier mpsd go on
        self._ends: dict[str, PodEnd] = {}  # by the pod's uid
        self._unheard: set[str] = set()  # recorded by an earlier agent, and not heard of since
        self._kept: tuple[PodEnd, ...] = ()  # what the file has
        self._looked_at: tuple[object, ...] = ()
        self._next_s = 0.0  # of the last look: when it has to be done again though nothing has changed
        self._mortal: dict[ProcessIdentity, bool] = {}  # whether a first signal would end it, when it was first seen
        self._begun: frozenset[ProcessIdentity] = frozenset()  # whose end has begun, as long as they are seen
        self._told: dict[str, float] = {}  # by uid, when its clients are stopped, as logged last
        self._failed: dict[ProcessIdentity, str] = {}  # why not

    def load(self) -> None:
        """Reads what an earlier agent has seen in this boot. Where that is unknown, no pod has any grace left."""
        try:
            found = records.read(self._file, _Record)
        except (records.UnreadableRecord, OSError) as error:
            self._log.warning("pod ends unreadable", file=str(self._file), reason=str(error))
            return
        if found and found.boot_id == processes.boot_id():
            self._kept = found.ends
            self._ends = {end.pod.uid: end for end in found.ends}
            self._unheard = {uid for uid, end in self._ends.items() if end.removed_s is None}

    @property
    def _drain_s(self) -> float:
        """For how long a client's queue may run; 0 where nothing is done about deleted pods."""
        policy = self._policy()
        return policy.graces.end_drain_s if policy.pod_ends else 0.0

    # -- what is seen of pods ----------------------------------------------------------------------

    def see(self, before: NodePod | Bystander | None, now: NodePod | Bystander | None) -> None:
        """What a pod was and is; None where it is not there."""
        if not self._drain_s:
            return
        now_s = processes.boot_time_s()
        is_same = before is not None and now is not None and before.identity == now.identity
        if before and not is_same:
            pod = before.identity
            self._put(rules.removed(self._ends.get(pod.uid), pod, now_s))
        if now:
            self._unheard.discard(now.identity.uid)
        if now and now.deletion:
            pod = now.identity
            was_running = is_same and before is not None and before.deletion is None
            end = rules.deleted(self._ends.get(pod.uid), pod, now.deletion, now_s, was_running=was_running)
            self._put(end)

    def _put(self, end: PodEnd) -> None:
        if end != self._ends.get(end.pod.uid):
            self._ends[end.pod.uid] = end
            self._looked_at = ()
            self._look_soon.ask()

    def _settle(self, now_s: float) -> None:
        """Notes which pods were removed while no agent ran, and forgets those whose time is over."""
        if self._unheard and self._pods.synced:
            for uid in self._unheard & self._ends.keys():
                self._ends[uid] = rules.removed(self._ends[uid], self._ends[uid].pod, now_s)
            self._unheard, self._looked_at = set(), ()
        self._ends = {uid: end for uid, end in self._ends.items() if not rules.is_over(end, now_s)}
        self._told = {uid: at_s for uid, at_s in self._told.items() if uid in self._ends}

    def _keep(self) -> None:
        """Writes what has changed."""
        ends = tuple(self._ends.values())
        if ends == self._kept:
            return
        self._kept = ends
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            records.write(self._file, _Record(processes.boot_id(), ends))
        except OSError as error:  # only an agent that is started meanwhile misses it
            self._log.warning("pod ends not recorded", file=str(self._file), reason=str(error))

    # -- what is done ------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """A change of a pod waits for no scan: kubelet's first signal may be some milliseconds away."""
        if self._scan:
            with self._shortages.survived("pod ends"):
                self.look(self._scan)

    def look(self, scan: Scan) -> None:
        """Stops the clients whose time it is. To be called with each scan of the watchdog."""
        self._scan = scan
        drain_s, now_s = self._drain_s, processes.boot_time_s()
        if not drain_s:
            self._ends = {}
        if not (self._ends or self._kept):
            return
        self._settle(now_s)
        if (scan, drain_s) != self._looked_at or now_s >= self._next_s:
            self._looked_at = (scan, drain_s)
            self._end_due(scan, now_s, self._policy().graces)
        self._keep()

    def _end_due(self, scan: Scan, now_s: float, graces: Graces) -> None:
        clients = [one for one in scan.clients if one.pod in self._ends and one.on_mps]
        self._judge(clients)
        mortal = {process for process, dies in self._mortal.items() if dies}
        self._tell([one for one in clients if one.process not in self._begun], now_s, graces.pod_end_s)
        due = rules.due_clients(self._ends, clients, mortal, now_s, graces.pod_end_s)
        self._next_s = due.next_s
        own = self._watchdog.own(scan) if due.clients else frozenset[ProcessIdentity]()
        for client in due.clients:
            if client.process not in own | self._begun:
                self._end(client, graces.end_drain_s)

    def _judge(self, clients: Iterable[Client]) -> None:
        """Asks once of each client what a first signal does to it, and forgets those that are gone."""
        known, self._mortal = self._mortal, {}
        for client in clients:
            process, end = client.process, self._ends[client.pod or ""]
            if process in known:
                self._mortal[process] = known[process]
            elif not end.has_pre_stop:
                self._mortal[process] = any(processes.dies_of(process, one) for one in _signals(end))
        seen = {client.process for client in clients}
        self._begun &= seen
        self._failed = {process: why for process, why in self._failed.items() if process in seen}

    def _tell(self, clients: Iterable[Client], now_s: float, pod_end_s: float) -> None:
        """Logs of each pod with clients when they are stopped at the latest, and again where that has changed."""
        for uid in {client.pod or "" for client in clients}:
            end = self._ends[uid]
            at_s = rules.stop_at_s(end, pod_end_s)
            if self._told.get(uid) != at_s:
                self._told[uid] = at_s
                about = {"grace_s": end.grace_s, "stop_in_s": round(max(0.0, at_s - now_s), 1)}
                is_removed = end.removed_s is not None
                self._log.info("pod end begun", pod=str(end.pod), uid=uid, **about, removed=is_removed)

    def _end(self, client: Client, drain_s: float) -> None:
        try:
            self._watchdog.ends.begin(EndAsked(client, _REASON, drain_s))
        except NotEnded as error:
            self._next_s = 0.0  # the next scan tries again, as long as it is there
            if self._failed.get(client.process) != str(error):
                self._failed[client.process] = str(error)
                tell = self._log.warning if isinstance(error, NotKilled) else self._log.info
                tell("not ended", pid=client.pid, reason=str(error))
            return
        self._begun |= {client.process}


def _signals(end: PodEnd) -> set[int]:
    """The numbers of the signals with which kubelet may begin; a name that this system does not have is none."""
    found = {int(signal.SIGTERM)}
    for name in end.stop_signals:
        parts = _SIGNAL.fullmatch(name)
        if parts and parts["name"] in signal.Signals.__members__:
            found.add(signal.Signals[parts["name"]] + int(parts["more"] or 0))
    return found
