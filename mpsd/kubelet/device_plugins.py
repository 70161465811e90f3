"""The two device plugins: memory, whose devices are on GPUs, and percent, which counts shares of
the threads.

Kubelet names no pod when it asks for devices, so the container is guessed here, and checked before
it starts. What is allocated is in the journal before kubelet is answered, and no container starts
before its domain's servers are known to accept a client of its size.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from mpsd.agent.agent import AgentRole
from mpsd.kubelet.ledger import KubeletGrants
from mpsd.kubelet.plugin_server import StartDeferred
from mpsd.kubelet.rules import allocation as rules
from mpsd.kubelet.rules.allocation import (
    Allocation,
    Answer,
    Device,
    NodeConditions,
    gpu_of,
    units_claimed,
    without_room,
)
from mpsd.kubelet.rules.gpu_choice import Offer, preferred
from mpsd.kubelet.rules.ledger import ContainerDevices, JournalEntry, served
from mpsd.kubelet.rules.node_pods import KINDS, ContainerName, Kind, RequestingContainer, expected
from mpsd.kubelet.rules.start_checks import (
    StartContext,
    StartProblem,
    start_problems,
    starting_container,
)
from mpsd.model.domain import Domain
from mpsd.model.events import Reason
from mpsd.model.grants import rooms
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput
from mpsd.mps.node_gpus import Node
from mpsd.mps.records import NodeDomains
from mpsd.platform import processes
from mpsd.platform.event_loop import Watchable
from mpsd.platform.logs import logger
from mpsd.watchdog.watchdog import ClusterReporter

_API_LAG_S = 1.0  # kubelet may know a pod before the agent does
_LOOK_AGAIN_S = 0.05
# While kubelet waits for GetPreferredAllocation or Allocate it takes no other pod.
# PreStartContainer holds up one container alone, for 30 s at most
# (KubeletPreStartContainerRPCTimeoutInSecs of k8s.io/kubelet's deviceplugin v1beta1).
_PREFER_S = 1.0
_RAISE_S = 3.0
_ANSWER_S = 6.0
_START_S = 20.0


@dataclass(eq=False)
class NodeDevices:
    """The devices of this node and who holds them, for both plugins. memory, percent: all devices
    of each resource."""

    node: Node
    domains: NodeDomains
    agent: AgentRole
    ledger: KubeletGrants
    policy: Callable[[], Policy]

    def __post_init__(self) -> None:
        self.memory = Watchable[tuple[Device, ...]](())
        self.percent = Watchable[tuple[Device, ...]](())
        self._made_from: tuple[object, ...] | None = None  # None before the first look
        # With MIG instances that are gone while pods may still hold devices of them, which stay
        # unhealthy.
        self._gpus = self.node.gpus
        # the GPUs that `mpsd control` joins and divides
        self.on_demand: frozenset[str] = frozenset()
        # the guess for one Allocate relies on the journal entry of the one before
        self.one_at_a_time = asyncio.Lock()

    def update(self, view: NodeView, *, is_left: bool = False) -> None:
        """Brings the devices up to date with this look at the node. is_left: its daemons may end
        for longer than a restart, so that a GPU which is down does not come back soon."""
        policy = self.policy()
        seen = {gpu for domain in view.domains for gpu in domain.record.gpus}
        self.on_demand = view.on_demand | self.on_demand - seen
        serving = (
            domain.record
            for domain in view.domains
            if rules.healthy(domain.state, domain.record.served)
        )
        good = frozenset(uuid for record in serving for uuid in record.gpus)
        # A GPU that is between two domains comes back like one whose daemon is started again.
        good |= (
            frozenset(gpu for one in view.leaving if one.record.served for gpu in one.record.gpus)
            - seen
        )
        here = {gpu.uuid for gpu in self.node.gpus}
        self._gpus = (*self.node.gpus, *(gpu for gpu in self._gpus if gpu.uuid in seen - here))
        good = frozenset() if is_left else good & here
        claimed = units_claimed([claim.allocation for claim in self.ledger.claims], policy)
        if self._made_from == (good, claimed, policy, self._gpus):
            return
        self._made_from = good, claimed, policy, self._gpus
        memory = rules.memory_devices(self._gpus, policy)
        taken = without_room(memory, claimed)
        self.memory.set(
            tuple(
                Device(device, gpu_of(device) in good and device not in taken) for device in memory
            )
        )
        self.percent.set(
            tuple(
                Device(device, bool(good))
                for device in rules.percent_devices(self.node.gpus, policy)
            )
        )

    def context(self) -> StartContext:
        ledger = self.ledger
        seen = [domain.record for domain in self.agent.view.domains] if self.agent.view else []
        records = tuple(record for record in seen if not self.domains.replaced(record))
        return StartContext(
            self.node.gpus, records, ledger.held_devices, ledger.entries, ledger.pods_seen
        )

    async def container_for(
        self, kind: Kind, count: int, gpus: int | None = None
    ) -> RequestingContainer | None:
        """The container that `count` devices are most likely for; None where none is known to wait
        for so many. gpus: the number of GPUs they lie on, where that is settled."""
        found = self.guess(kind, count, gpus)
        deadline = time.monotonic() + _API_LAG_S
        while found is None and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_AGAIN_S)
            found = self.guess(kind, count, gpus)
        return found

    def guess(self, kind: Kind, count: int, gpus: int | None = None) -> RequestingContainer | None:
        """As `container_for`, without waiting for the API."""
        ledger = self.ledger
        pods = self.ledger.pods_seen
        have = {each: served(each, ledger.held_devices, ledger.entries, pods) for each in KINDS}
        begun = frozenset().union(
            *(containers for each, containers in have.items() if each != kind)
        )
        return expected(pods, have[kind], kind, count, gpus=gpus, begun=begun)

    def joined_for(self, ids: Sequence[str]) -> tuple[Domain, ...]:
        """The domains once the GPUs of these devices are one; those of now where they cannot be."""
        gpus = _gpus_of(ids)
        planned = (
            self.domains.planned(gpus, self.ledger.view.gpus) if self._may_join(gpus) else None
        )
        return planned or self.domains.now

    def join(self, ids: Sequence[str]) -> bool:
        """Has the GPUs of these devices in one domain from now on, where they can be; whether that
        is another one."""
        gpus = _gpus_of(ids)
        before = self.domains.now
        if self._may_join(gpus):
            self.domains.form(gpus, self.ledger.view.gpus)
            self.ledger.count()
        return self.domains.now is not before

    def join_again(self, starting: ContainerDevices) -> None:
        """For a container that kubelet starts without Allocate, as after a reboot, when no GPUs are
        joined yet."""
        gpus = _gpus_of(starting.memory)
        grants = [held.grant for held in self.ledger.view.held]
        pod = "/".join(starting.pod)
        others = {uuid for one in grants if str(one.holder) != pod for uuid in one.gpus}
        is_whole = any(set(gpus).issubset(domain.gpus) for domain in self.domains.now)
        if not is_whole and self._may_join(gpus) and self.domains.form(gpus, others):
            self.ledger.count()

    def _may_join(self, gpus: Collection[str]) -> bool:
        return self.on_demand.issuperset(gpus) and not self.ledger.view.unknown

    def note(
        self,
        kind: Kind,
        ids: Sequence[str],
        container: RequestingContainer | None,
        percent: int | None,
        priority: int | None = None,
    ) -> None:
        name, uid = (container.name, container.pod.uid) if container else (None, "")
        unit_mib = self.policy().resources.memory_unit_mib if kind == "memory" else 0
        now = time.time()
        boot_id = processes.boot_id()
        entry = JournalEntry(
            kind, tuple(ids), name, percent, boot_id, now, uid, unit_mib, priority, uid
        )
        self.ledger.note(entry)


class MemoryPlugin:
    def __init__(
        self, devices: NodeDevices, conditions: NodeConditions, cluster: ClusterReporter
    ) -> None:
        self._node = devices
        self._conditions = conditions
        self._cluster = cluster
        self._log = logger(role="device plugin")

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        return self._node.memory.follow()

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Asks kubelet first where anything was given since its last answer: for a pod that came a
        moment ago the journal may have guessed another's percent. Kubelet answers meanwhile: it
        holds no lock while it asks this (callGetPreferredAllocationIfAvailable of its
        pkg/kubelet/cm/devicemanager/manager.go)."""
        node = self._node
        ledger = self._node.ledger
        if not ledger.is_current:
            await ledger.refresh_now(_PREFER_S)
        container = await node.container_for("memory", size)
        held: set[str] = set()
        if container:  # its pod's other containers may hold devices already
            listed = (one.memory for one in ledger.held_devices if one.pod == container.pod.key)
            noted = (
                one.ids
                for one in ledger.entries
                if one.resource == "memory" and one.uid == container.pod.uid
            )
            held.update(*listed, *noted)
        domain_of = {uuid: domain.name for domain in node.domains.now for uuid in domain.gpus}
        on_demand = frozenset() if ledger.view.unknown else node.on_demand
        grants = [one.grant for one in ledger.view.held]
        here = rooms(node.node.gpus, domain_of, grants, node.policy(), on_demand)
        offer = Offer(available, must_include, size, container.request.gpus if container else 1)
        return preferred(offer, container, here, node.policy(), tuple(held))

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """InvalidInput where no container can have these devices together; then the pod gets an
        event too."""
        async with self._node.one_at_a_time:
            container = await self._node.container_for("memory", len(ids), len(_gpus_of(ids)))
            try:
                allocation = rules.allocate_memory(
                    ids, container, self._node.joined_for(ids), self._node.policy()
                )
            except InvalidInput as error:
                if container:
                    self._cluster.add_event(
                        container.pod.identity, Reason.ALLOCATION_REFUSED, str(error)
                    )
                self._log.warning("allocation refused", devices=len(ids), reason=str(error))
                raise
            joins = self._node.join(ids)
            self._node.note(
                "memory", ids, container, allocation.thread_percent, allocation.priority
            )
        # the container waits for it, kubelet need not
        why = f"{allocation.domain} is being made of its GPUs"
        if not joins:
            why = await self._node.agent.until_allowed(
                allocation.domain, allocation.memory_mib, _RAISE_S
            )
        later = {"starts_later": why} if why else {}
        name = str(container.name) if container else "unknown"
        self._log.info(
            "allocated",
            container=name,
            gpus=allocation.gpus,
            memory_mib=allocation.memory_mib,
            **later,
        )
        return rules.memory_answer(allocation, self._conditions)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """StartDeferred with the reason; kubelet retries, unless the pod has been evicted. A
        container that started before kubelet lists what its pod holds could be judged by too small
        a grant."""
        if silent := await self._node.ledger.until_answered(_ANSWER_S):
            raise StartDeferred(f"kubelet does not list who holds which device: {silent}")
        starting = starting_container(tuple(ids), self._node.context())
        # After a reboot the init container that kubelet starts is guessed, and recorded.
        if starting is None and (guess := self._node.guess("memory", len(ids), len(_gpus_of(ids)))):
            given = self._allocation(ids, guess)
            self._node.note("memory", ids, guess, given.thread_percent, given.priority)
            starting = starting_container(tuple(ids), self._node.context())
        starting = starting or ContainerDevices(
            ContainerName("", "(unknown)", "(unknown)"), tuple(ids)
        )
        self._node.join_again(starting)
        context = self._node.context()
        problems = self._problems(starting, context)
        pod = context.pod(starting.pod)
        if wrong := "; ".join(problem.sentence for problem in problems if not problem.waits):
            if pod:
                self._cluster.add_event(pod.identity, Reason.LIMITS_MISMATCH, wrong)
                await self._cluster.evict(pod.identity, wrong)
            raise StartDeferred(wrong)
        request = pod.request(starting.container.container) if pod else None
        allocation = self._allocation(
            ids, RequestingContainer(pod, request) if pod and request else None
        )
        why = await self._node.agent.until_allowed(
            allocation.domain, allocation.memory_mib, _START_S
        )
        # while they are unknown no limit is set
        why = why and (self._node.ledger.claims_unknown or why)
        if (now := self._node.context()) != context:  # it had to wait
            problems = self._problems(starting, now)
        waits = (
            f"{starting.container} waits: {why}" if why else "; ".join(p.sentence for p in problems)
        )
        if waits:
            self._log.warning("start deferred", container=str(starting.container), reason=waits)
            if pod and request:
                self._cluster.add_event(pod.identity, Reason.START_HELD_BACK, waits)
            raise StartDeferred(waits)

    def _allocation(self, ids: Sequence[str], container: RequestingContainer | None) -> Allocation:
        return rules.allocate_memory(ids, container, self._node.domains.now, self._node.policy())

    def _problems(
        self, starting: ContainerDevices, context: StartContext
    ) -> Sequence[StartProblem]:
        return start_problems(starting, context, self._node.policy())


def _gpus_of(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(uuid for one in ids if (uuid := gpu_of(one))))


class PercentPlugin:
    """The plugin of the percent resource, whose devices are all alike."""

    def __init__(self, devices: NodeDevices) -> None:
        self._node = devices

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        return self._node.percent.follow()

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        free = sorted(set(available).difference(must_include), key=rules.number_of)
        return [*must_include, *free][:size]

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """InvalidInput where so many percents are no share of a GPU."""
        async with self._node.one_at_a_time:
            container = await self._node.container_for("percent", len(ids))
            percent = rules.allocate_percent(ids, container, self._node.policy())
            self._node.note("percent", ids, container, percent)
        return rules.percent_answer(percent)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Percents never defer a start."""
