"""What is told of the faults of a domain: on its node, and on each pod that a fault hit.

One rule: a fault is told by what is written down of it, never by the time of a look, so that every agent that finds it
says the same, and the API server sees that it was said already.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd.model.events import Happening, Reason, Stamp, Subject, pod_subject
from mpsd.model.identity import PodName
from mpsd.model.node_view import Fault, NodeView, pod_names
from mpsd.mps.rules.faults import presence, suspects

TOLD_S = 600.0  # a fault that healed and is older is not told by an agent that comes upon it
MOST_NAMES = 10  # in one message

_Hit = Counter[str | None]  # processes by the uid of their pod; None: of no pod


@dataclass(frozen=True, slots=True)
class FaultTeller:
    """before: None for an agent's first look. node: whose GPUs they are."""

    before: NodeView | None
    now: NodeView
    node: Subject
    stamp: Stamp

    def of(self, domain: str) -> Iterator[Happening]:
        """What is new of this domain's faults."""
        there = self.now.domain(domain)
        earlier = self.before.domain(domain) if self.before else None
        told = {fault.at: fault for fault in (earlier.record.faults if earlier else ())}
        faults = there.record.faults if there else ()
        saying = _Saying(domain, self._names(), self.node, self.stamp)
        for number, fault in enumerate(faults, 1):
            old = earlier is None and fault.healed_at is not None and self.now.now - fault.at > TOLD_S
            if old:
                continue
            hit = self._hit(fault)
            if fault.at not in told:
                yield saying.on_node(faults[:number], hit)
                yield from saying.on_pods(faults[:number], hit)
            else:  # but for those whom the log named later
                yield from saying.on_pods(faults[:number], hit - self._hit(told[fault.at]))
            yield from saying.of_ends(told.get(fault.at), fault)

    def _names(self) -> Mapping[str, PodName]:
        return pod_names(self.now, self.before) if self.before else pod_names(self.now)

    def _hit(self, fault: Fault) -> _Hit:
        """Of what pod the record does not say, the look before may."""
        written = {hit.process.pid: hit.pod for hit in fault.hit}
        seen = {client.pid: client.pod for client in (self.before.clients if self.before else None) or ()}
        return Counter(written.get(pid) or seen.get(pid) for pid in fault.pids)


@dataclass(frozen=True, slots=True)
class _Saying:
    """names: of the pods, by uid."""

    domain: str
    names: Mapping[str, PodName]
    node: Subject
    stamp: Stamp

    def on_node(self, faults: Sequence[Fault], hit: _Hit) -> Happening:
        """Of the last of these."""
        said = f"MPS domain {self.domain} had a fault, which ended the work of every program on its GPU: "
        said += self._who(hit)
        if sum(hit.values()) > 1:
            said += "; which of them caused it nobody can say"
        if found := suspects(faults):
            each = [f"{self._name(one.pod)} ({one.faults} faults since {self.stamp(one.since)})" for one in found]
            said += f"; hit each time: {listed(each)}"
        return Happening(self.node, Reason.FAULT, said, faults[-1].at)

    def on_pods(self, faults: Sequence[Fault], hit: _Hit) -> Iterator[Happening]:
        """On every pod that the last of these hit."""
        for pod in sorted(hit.keys() & self.names.keys(), key=str):
            lost = f"{hit[pod]} GPU process{'es' if hit[pod] > 1 else ''} of this pod"
            said = f"MPS domain {self.domain}: the fault of a program there ended the work of {lost}"
            said += f"; {'they' if hit[pod] > 1 else 'it'} must be started again"
            times = presence(faults, str(pod))
            if times > 1:
                since = self.stamp(faults[-times].at)
                said += f"; this pod was present at {times} of {times} faults since {since}"
            yield Happening(pod_subject(self.names[str(pod)]), Reason.FAULT, said, faults[-1].at)

    def of_ends(self, told: Fault | None, fault: Fault) -> Iterator[Happening]:
        """On the pods of those that lingered and were ended since it was told last."""
        already = {hit.process for hit in told.hit if hit.ended_at is not None} if told else set()
        for hit in fault.hit:
            pod = self.names.get(hit.pod or "")
            if pod and hit.ended_at is not None and hit.process not in already:
                said = (
                    f"MPS domain {self.domain}: {hit.process} of this pod stayed after a fault had ended its work, "
                    "and was killed, so that the GPU serves again"
                )
                yield Happening(pod_subject(pod), Reason.FAULT, said, hit.ended_at)

    def _who(self, hit: _Hit) -> str:
        pods = sorted(f"{self._name(pod)} ({number})" for pod, number in hit.items() if pod is not None)
        others = [f"processes of no pod ({hit[None]})"] if hit[None] else []
        return listed(pods + others) if hit else "nobody is known to have been there"

    def _name(self, pod: str) -> str:
        return str(self.names[pod]) if pod in self.names else f"a pod that is gone, uid {pod}"


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
