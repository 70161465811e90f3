"""The device plugin of the memory resource: its devices say which GPU a container gets, and how much of it.

One rule: what is allocated is in the journal before kubelet is answered, and no container starts before its domain's
servers are known to let a client of its size in.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from mpsd.agent.agent import AgentRole
from mpsd.kubelet.device_plugin import StartDeferred
from mpsd.kubelet.ledger import KubeletGrants
from mpsd.kubelet.pod_resources import Kind
from mpsd.kubelet.rules import journal
from mpsd.kubelet.rules.allocation import (
    Allocation,
    Asking,
    JournalEntry,
    NodeConditions,
    allocate_memory,
    allocate_percent,
    memory_answer,
    percent_answer,
)
from mpsd.kubelet.rules.devices import gpu_of, healthy, memory_devices, number_of, percent_devices
from mpsd.kubelet.rules.gpu_choice import Cards, Choice, preferred
from mpsd.kubelet.rules.messages import Answer, Device
from mpsd.kubelet.rules.node_pods import ContainerName, NodePod, expected, memory_units, percents
from mpsd.kubelet.rules.pod_grants import ContainerDevices
from mpsd.kubelet.rules.start_checks import StartContext, StartProblem, start_problems, starting_container
from mpsd.model.domain import Domain
from mpsd.model.events import Event, Reason, pod_subject
from mpsd.model.identity import PodName
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput
from mpsd.model.request import ContainerRequest
from mpsd.mps.node import Node
from mpsd.platform import processes
from mpsd.platform.event_loop import Watchable
from mpsd.platform.logs import logger
from mpsd.platform.waiting import until

# The devices of this node and who holds them: what both resources of the device plugin go by.
#
# One rule: kubelet names no pod; whom devices are for is guessed here, in one way, and checked before a container
# starts.

_AMOUNTS: Mapping[Kind, Callable[[ContainerRequest], int]] = {"memory": memory_units, "percent": percents}
_API_LAG_S = 1.0  # kubelet may hear of a pod before we do
_LOOK_AGAIN_S = 0.05


class NodeDevices:
    """memory, percent: every device of each resource, as kubelet is to be told."""

    def __init__(
        self,
        node: Node,
        domains: tuple[Domain, ...],
        agent: AgentRole,
        ledger: KubeletGrants,
        policy: Callable[[], Policy],
    ) -> None:
        self.node = node
        self.domains = domains
        self.agent = agent
        self.ledger = ledger
        self.policy = policy
        self.memory = Watchable[tuple[Device, ...]](())
        self.percent = Watchable[tuple[Device, ...]](())
        self._listed: tuple[frozenset[str], Policy] | None = None  # what the devices were made from; None before that
        self.one_at_a_time = asyncio.Lock()  # a guess at a pod counts on those before it being written down

    @property
    def domain_of(self) -> dict[str, str]:
        """From UUID to the name of its domain."""
        return {uuid: domain.name for domain in self.domains for uuid in domain.gpus}

    def see(self, view: NodeView) -> None:
        """Brings the devices up to date with this look at the node."""
        policy = self.policy()
        serving = (domain.record for domain in view.domains if healthy(domain.state, domain.record.served))
        good = frozenset(uuid for record in serving for uuid in record.gpus)
        if self._listed == (good, policy):
            return
        self._listed = good, policy
        memory = memory_devices(self.node.gpus, policy)
        self.memory.set(tuple(Device(device, gpu_of(device) in good) for device in memory))
        self.percent.set(tuple(Device(device, bool(good)) for device in percent_devices(self.node.gpus, policy)))

    def holdings(self) -> StartContext:
        """What a start is held against."""
        view, ledger = self.agent.view, self.ledger
        records = tuple(domain.record for domain in view.domains) if view else ()
        return StartContext(self.node.gpus, records, ledger.held_devices, ledger.entries, ledger.pods_seen)

    async def whose(self, resource: Kind, count: int, gpus: int | None = None) -> Asking | None:
        """The container that `count` devices are most likely for; None where nobody is known to wait for so many.

        gpus: the number of GPUs they lie on, where that is settled.
        """
        found = self.guess(resource, count, gpus)
        if found is None:
            with suppress(TimeoutError):
                news = partial(self.guess, resource, count, gpus)
                await until(news, _API_LAG_S, "the pod is known", look_again_s=_LOOK_AGAIN_S)
        return found or self.guess(resource, count, gpus)

    def guess(self, resource: Kind, count: int, gpus: int | None = None) -> Asking | None:
        """As `whose`, without waiting for news."""
        ledger, pods = self.ledger, self.ledger.pods_seen
        served = {kind: journal.served(kind, ledger.held_devices, ledger.entries, pods) for kind in _AMOUNTS}
        others = frozenset().union(*(containers for kind, containers in served.items() if kind != resource))
        return expected(pods, served[resource], _AMOUNTS[resource], count, gpus=gpus, begun=others)


# While kubelet waits for GetPreferredAllocation or Allocate it takes no other pod. PreStartContainer holds up one
# container alone, for 30 s at most (KubeletPreStartContainerRPCTimeoutInSecs of k8s.io/kubelet's deviceplugin v1beta1).
_PREFER_S = 1.0
_RAISE_S = 3.0
_ANSWER_S = 6.0
_START_S = 20.0

_NOBODY = ContainerName("", "(unknown)", "(unknown)")


class MemoryPlugin:
    """tell: makes an event. evict: ends a pod that can never start as it is."""

    def __init__(
        self,
        devices: NodeDevices,
        around: NodeConditions,
        tell: Callable[[Event], None],
        evict: Callable[[PodName, str], Awaitable[None]],
    ) -> None:
        self._node = devices
        self._around = around
        self._tell = tell
        self._evict = evict
        self._log = logger(role="device plugin")

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        return self._node.memory.follow()

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """By what kubelet says now: of a pod that came a moment ago the journal may have guessed another's percent.

        kubelet answers meanwhile: it holds no lock while it asks this (callGetPreferredAllocationIfAvailable of its
        pkg/kubelet/cm/devicemanager/manager.go).
        """
        node = self._node
        await node.ledger.refresh_now(_PREFER_S)
        asking = await node.whose("memory", size)
        held = self._held_by(asking[0]) if asking else ()
        cards = Cards(node.node.gpus, node.domain_of, tuple(held.grant for held in node.ledger.held()))
        return preferred(Choice(available, must_include, size), asking, cards, node.policy(), held)

    def _held_by(self, pod: NodePod) -> tuple[str, ...]:
        """The memory devices that containers of this pod have already."""
        listed = (one for one in self._node.ledger.held_devices if one.pod == (pod.namespace, pod.name))
        noted = (entry for entry in self._node.ledger.entries if entry.resource == "memory" and entry.uid == pod.uid)
        return tuple({*(i for one in listed for i in one.memory), *(i for entry in noted for i in entry.ids)})

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """InvalidInput where no container can have these devices together; the pod is told too."""
        async with self._node.one_at_a_time:
            asking = await self._node.whose("memory", len(ids), _gpus_of(ids))
            try:
                allocation = allocate_memory(ids, asking, self._node.domains, self._node.policy())
            except InvalidInput as error:
                if asking:
                    self._tell(Event(pod_subject(asking[0].identity), Reason.ALLOCATION_REFUSED, str(error)))
                self._log.warning("allocation refused", devices=len(ids), reason=str(error))
                raise
            self._note(ids, asking, allocation)
        why = await self._node.agent.until_allowed(allocation.domain, allocation.memory_mib, _RAISE_S)
        whose = str(asking[0].container(asking[1])) if asking else "unknown"
        self._log.info(
            "allocated",
            container=whose,
            gpus=allocation.gpus,
            memory_mib=allocation.memory_mib,
            **({"starts_later": why} if why else {}),
        )
        return memory_answer(allocation, self._around)

    def _note(self, ids: Sequence[str], asking: Asking | None, allocation: Allocation) -> None:
        container = asking[0].container(asking[1]) if asking else None
        uid = asking[0].uid if asking else ""
        percent = allocation.thread_percent
        boot, unit_mib = processes.boot_id(), self._node.policy().resources.memory_unit_mib
        self._node.ledger.note(JournalEntry("memory", tuple(ids), container, percent, boot, time.time(), uid, unit_mib))

    async def pre_start(self, ids: Sequence[str]) -> None:
        """HeldBack with the reason; kubelet tries again, unless the pod has been evicted.

        A container that started before kubelet has said what its pod holds could be taken for one that has too much.
        """
        if silent := await self._node.ledger.until_answered(_ANSWER_S):
            raise StartDeferred(f"kubelet does not say who holds what: {silent}")
        starting = self._starting(ids)
        problems = self._problems(starting)
        if wrong := [problem.sentence for problem in problems if not problem.waits]:
            await self._end(starting.container, "; ".join(wrong))
        asking = self._asking(starting)
        allocation = allocate_memory(ids, asking, self._node.domains, self._node.policy())
        why = await self._node.agent.until_allowed(allocation.domain, allocation.memory_mib, _START_S)
        waits = [f"{starting.container} waits: {why}"] if why else [left.sentence for left in self._problems(starting)]
        if waits:
            self._log.warning("start held back", container=str(starting.container), reason="; ".join(waits))
            if asking:
                self._tell(Event(pod_subject(asking[0].identity), Reason.START_HELD_BACK, "; ".join(waits)))
            raise StartDeferred("; ".join(waits))

    def _problems(self, starting: ContainerDevices) -> Sequence[StartProblem]:
        return start_problems(starting, self._node.holdings(), self._node.policy())

    def _starting(self, ids: Sequence[str]) -> ContainerDevices:
        """The container that kubelet starts; after a reboot an init container's is a guess, which is written down."""
        found = starting_container(tuple(ids), self._node.holdings())
        if found is None and (asking := self._node.guess("memory", len(ids), _gpus_of(ids))):
            self._note(ids, asking, allocate_memory(ids, asking, self._node.domains, self._node.policy()))
            found = starting_container(tuple(ids), self._node.holdings())
        return found or ContainerDevices(_NOBODY, tuple(ids), ())

    def _asking(self, starting: ContainerDevices) -> Asking | None:
        name = starting.container
        pod = self._node.holdings().pod(name.namespace, name.pod)
        request = pod.request(name.container) if pod else None
        return (pod, request) if pod and request else None

    async def _end(self, name: ContainerName, why: str) -> None:
        """Evicts the pod, and refuses the start."""
        pod = self._node.holdings().pod(name.namespace, name.pod)
        if pod:
            self._tell(Event(pod_subject(pod.identity), Reason.LIMITS_MISMATCH, why))
            await self._evict(pod.identity, why)
        raise StartDeferred(why)


def _gpus_of(ids: Sequence[str]) -> int:
    """The number of GPUs that these devices lie on."""
    return len(set(map(gpu_of, ids)))


# The device plugin of the percent resource: its devices count a container's share of a GPU's threads.
#
# One rule: a percent names no GPU; that the sum on each GPU holds is seen to where the memory's container starts.


class PercentPlugin:
    """Every percent is like every other."""

    def __init__(self, devices: NodeDevices) -> None:
        self._node = devices

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        return self._node.percent.follow()

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        free = sorted(set(available).difference(must_include), key=number_of)
        return [*must_include, *free][:size]

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """InvalidInput where so many are no share of a GPU."""
        async with self._node.one_at_a_time:
            asking = await self._node.whose("percent", len(ids))
            percent = allocate_percent(ids, asking, self._node.policy())
            container, uid = (asking[0].container(asking[1]), asking[0].uid) if asking else (None, "")
            self._node.ledger.note(
                JournalEntry("percent", tuple(ids), container, percent, processes.boot_id(), time.time(), uid)
            )
        return percent_answer(percent)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Nothing waits for percents."""
