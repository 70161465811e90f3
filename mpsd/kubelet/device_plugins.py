"""The two device plugins: memory, whose devices are on GPUs, and percent.

What is allocated is in the journal before kubelet is answered, and no container starts before its
domain's servers are known to accept a client of its size.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
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
    domain_with,
    gpu_of,
    gpus_asked,
    gpus_of,
    names_by_gpu,
    units_claimed,
    without_room,
)
from mpsd.kubelet.rules.gpu_choice import Offer, preferred
from mpsd.kubelet.rules.ledger import ContainerDevices, JournalEntry, given_before, served
from mpsd.kubelet.rules.node_pods import (
    KINDS,
    ContainerName,
    Kind,
    PodKey,
    RequestingContainer,
    expected,
)
from mpsd.kubelet.rules.start_checks import (
    StartContext,
    start_problems,
    starting_container,
)
from mpsd.model.domain import Domain
from mpsd.model.events import Reason
from mpsd.model.grants import rooms
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem
from mpsd.mps.node_gpus import Node
from mpsd.mps.records import NodeDomains
from mpsd.platform import clock, processes
from mpsd.platform.event_loop import Watchable
from mpsd.platform.logs import Logger, logger
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
    """The devices of this node and who holds them, for both plugins."""

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
        """Brings the devices up to date. is_left: daemons that are down do not come back soon."""
        policy = self.policy()
        seen: set[str] = set()
        good: set[str] = set()
        for domain in view.domains:
            seen.update(domain.record.gpus)
            if rules.healthy(domain.state, domain.record.served):
                good.update(domain.record.gpus)
        self.on_demand = view.on_demand | self.on_demand - seen
        # A GPU that is between two domains comes back like one whose daemon is started again.
        for one in view.leaving:
            if one.record.served:
                good.update(set(one.record.gpus) - seen)
        here = {gpu.uuid for gpu in self.node.gpus}
        good &= here
        if is_left:
            good.clear()
        self._gpus = (*self.node.gpus, *(gpu for gpu in self._gpus if gpu.uuid in seen - here))
        claimed = units_claimed([claim.allocation for claim in self.ledger.claims], policy)
        if self._made_from == (good, claimed, policy, self._gpus):
            return
        self._made_from = good, claimed, policy, self._gpus
        memory = rules.memory_devices(self._gpus, policy)
        taken = without_room(memory, claimed)
        healthy = [Device(one, gpu_of(one) in good and one not in taken) for one in memory]
        self.memory.set(tuple(healthy))
        percent = rules.percent_devices(self.node.gpus, policy)
        self.percent.set(tuple(Device(one, bool(good)) for one in percent))

    def context(self) -> StartContext:
        ledger = self.ledger
        view = self.agent.view
        records = [domain.record for domain in view.domains] if view else []
        return StartContext(
            gpus=self.node.gpus,
            records=tuple(one for one in records if not self.domains.replaced(one)),
            held=ledger.held_devices,
            journal=ledger.entries,
            pods=ledger.pods_seen,
        )

    async def container_for(
        self, kind: Kind, count: int, gpus: int | None = None
    ) -> RequestingContainer | None:
        """The container that `count` devices on `gpus` GPUs are most likely for; None where none is
        known to wait for so many."""
        found = self.guess(kind, count, gpus)
        deadline = time.monotonic() + _API_LAG_S
        while found is None and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_AGAIN_S)
            found = self.guess(kind, count, gpus)
        return found

    def guess(self, kind: Kind, count: int, gpus: int | None = None) -> RequestingContainer | None:
        """As `container_for`, without waiting for the API."""
        known = self.ledger.held_devices, self.ledger.entries, self.ledger.pods_seen
        memory, percent = (served(each, *known) for each in KINDS)
        have, begun = memory, percent
        if kind == "percent":
            have, begun = percent, memory
        return expected(self.ledger.pods_seen, have, kind, count, gpus=gpus, begun=begun)

    def joined_for(self, ids: Sequence[str]) -> tuple[Domain, ...]:
        """Once the GPUs of these devices are one domain; those of now where they cannot be."""
        gpus = gpus_of(ids)
        if not self._may_join(gpus):
            return self.domains.now
        return self.domains.planned(gpus, self.ledger.view.gpus) or self.domains.now

    def join(self, ids: Sequence[str]) -> bool:
        """Has their GPUs in one domain from now on, where possible; whether that is another one."""
        gpus = gpus_of(ids)
        before = self.domains.now
        if self._may_join(gpus):
            self.domains.form(gpus, self.ledger.view.gpus)
            self.ledger.count()
        return self.domains.now is not before

    def join_again(self, starting: ContainerDevices) -> None:
        """For a container that kubelet starts without Allocate, as after a reboot."""
        gpus = gpus_of(starting.memory)
        grants = [held.grant for held in self.ledger.view.held]
        pod = "/".join(starting.pod)
        others = {uuid for one in grants if str(one.holder) != pod for uuid in one.gpus}
        is_whole = domain_with(gpus, self.domains.now)
        if not is_whole and self._may_join(gpus) and self.domains.form(gpus, others):
            self.ledger.count()

    def _may_join(self, gpus: Collection[str]) -> bool:
        return self.on_demand.issuperset(gpus) and not self.ledger.view.unknown

    def not_given(
        self, available: Sequence[str], size: int, container: RequestingContainer | None
    ) -> Sequence[str]:
        """Without those that other pods have by the journal, where enough are left."""
        taken = set[str]()
        for ids in self._given_before(available, container).values():
            taken.update(ids)
        left = [one for one in available if one not in taken]
        return left if len(left) >= size else available

    def refuse_taken(
        self, ids: Sequence[str], container: RequestingContainer | None, cluster: ClusterReporter
    ) -> None:
        """InvalidInput, and events, where another pod has some of these devices and runs: kubelet,
        which frees them once a pod's containers have ended, has lost its checkpoint."""
        given = self._given_before(ids, container)
        pods = [pod for pod in self.ledger.pods_seen if pod.key in given]
        living = self.ledger.whereabouts.living(
            {uid for pod in pods for uid in (pod.uid, pod.static_uid) if uid}
        )
        problems = []
        for pod in pods:
            shared = given[pod.key]
            if living.isdisjoint({pod.uid, pod.static_uid}):
                continue
            forgot = "kubelet has lost its checkpoint, and allocates"
            remedy = f"delete pod {pod.identity}, or drain the node, then recreate this pod"
            what = f"{forgot} {len(shared)} of these devices again while pod {pod.identity} has"
            problems.append(Problem("devices-of-another", "devices", "", f"{what} them", remedy))
            # without its name: each of a Deployment's pods would make an event of its own
            told = f"{forgot} devices of pod {pod.identity}, which runs, to another"
            for subject in (None, pod.identity):
                cluster.add_event(subject, Reason.DEVICES_GIVEN_TWICE, f"{told}; it is refused")
        if problems:
            raise InvalidInput(str(container.name) if container else "a container", problems)

    def _given_before(
        self, ids: Sequence[str], container: RequestingContainer | None
    ) -> Mapping[PodKey, frozenset[str]]:
        to = container.pod.key if container else None
        return given_before(ids, to, self.ledger.entries, self.ledger.pods_seen)

    def note(
        self,
        kind: Kind,
        ids: Sequence[str],
        container: RequestingContainer | None,
        percent: int | None,
        priority: int | None = None,
    ) -> None:
        name = None
        uid = ""
        if container:
            name = container.name
            uid = container.pod.uid
        entry = JournalEntry(
            kind,
            tuple(ids),
            name,
            percent,
            boot_id=processes.boot_id(),
            at=clock.boot_s(),
            uid=uid,
            unit_mib=self.policy().resources.memory_unit_mib if kind == "memory" else 0,
            priority=priority,
            answered_for=uid,
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
        """Asks kubelet first where anything was given since its last answer: the journal may have
        guessed another's percent. Kubelet answers meanwhile: it holds no lock
        (callGetPreferredAllocationIfAvailable of its pkg/kubelet/cm/devicemanager/manager.go)."""
        node = self._node
        ledger = self._node.ledger
        if not ledger.is_current:
            await ledger.refresh_now(_PREFER_S)
        container = await node.container_for("memory", size)
        held: set[str] = set()
        if container:  # its pod's other containers may hold devices already
            for one in ledger.held_devices:
                if one.pod == container.pod.key:
                    held.update(one.memory)
            for entry in ledger.entries:
                if entry.resource == "memory" and entry.uid == container.pod.uid:
                    held.update(entry.ids)
        domain_of = names_by_gpu(node.domains.now)
        on_demand = frozenset() if ledger.view.unknown else node.on_demand
        grants = [one.grant for one in ledger.view.held]
        here = rooms(node.node.gpus, domain_of, grants, node.policy(), on_demand)
        available = node.not_given(available, size, container)
        offer = Offer(available, must_include, size, gpus_asked(container))
        return preferred(offer, container, here, node.policy(), tuple(held))

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """InvalidInput, and an event, where no container can have these devices together."""
        async with self._node.one_at_a_time:
            container = await self._node.container_for("memory", len(ids), len(gpus_of(ids)))
            try:
                self._node.refuse_taken(ids, container, self._cluster)
                allocation = rules.allocate_memory(
                    ids, container, self._node.joined_for(ids), self._node.policy()
                )
            except InvalidInput as error:
                _report_refusal(error, len(ids), container, self._cluster, self._log)
                raise
            joins = self._node.join(ids)
            self._node.note(
                "memory", ids, container, allocation.thread_percent, allocation.priority
            )
        # the container waits for it, kubelet need not
        why = f"{allocation.domain} is being made of its GPUs"
        if not joins:
            why = await self._until_allowed(allocation, _RAISE_S)
        later = {"starts_later": why} if why else {}
        name = str(container.name) if container else "unknown"
        about = {"gpus": allocation.gpus, "memory_mib": allocation.memory_mib}
        self._log.info("allocated", container=name, **about, **later)
        return rules.memory_answer(allocation, self._conditions)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """StartDeferred with the reason; kubelet retries, unless the pod has been evicted. Kubelet
        must have listed what the pod holds: it could be judged by too small a grant."""
        if silent := await self._node.ledger.until_answered(_ANSWER_S):
            raise StartDeferred(f"kubelet does not list who holds which device: {silent}")
        starting = starting_container(tuple(ids), self._node.context())
        # After a reboot the init container that kubelet starts is guessed, and recorded.
        if starting is None and (guess := self._node.guess("memory", len(ids), len(gpus_of(ids)))):
            given = self._allocation(ids, guess)
            self._node.note("memory", ids, guess, given.thread_percent, given.priority)
            starting = starting_container(tuple(ids), self._node.context())
        starting = starting or ContainerDevices(
            ContainerName("", "(unknown)", "(unknown)"), tuple(ids)
        )
        self._node.join_again(starting)
        context = self._node.context()
        problems = start_problems(starting, context, self._node.policy())
        pod = context.pod(starting.pod)
        if wrong := "; ".join(problem.sentence for problem in problems if not problem.waits):
            if pod:
                self._cluster.add_event(pod.identity, Reason.LIMITS_MISMATCH, wrong)
                await self._cluster.evict(pod.identity, wrong)
            raise StartDeferred(wrong)
        container = None
        if pod and (request := context.request(starting.container)):
            container = RequestingContainer(pod, request)
        why = await self._until_allowed(self._allocation(ids, container), _START_S)
        if why:  # while claims are unknown no limit is set
            waits = f"{starting.container} waits: {self._node.ledger.claims_unknown or why}"
        else:
            if (now := self._node.context()) != context:  # it had to wait
                problems = start_problems(starting, now, self._node.policy())
            waits = "; ".join(problem.sentence for problem in problems)
        if waits:
            self._log.warning("start deferred", container=str(starting.container), reason=waits)
            if container:
                self._cluster.add_event(container.pod.identity, Reason.START_HELD_BACK, waits)
            raise StartDeferred(waits)

    def _allocation(self, ids: Sequence[str], container: RequestingContainer | None) -> Allocation:
        return rules.allocate_memory(ids, container, self._node.domains.now, self._node.policy())

    async def _until_allowed(self, allocation: Allocation, deadline_s: float) -> str:
        return await self._node.agent.until_allowed(
            allocation.domain, allocation.memory_mib, deadline_s
        )


def _report_refusal(
    error: InvalidInput,
    devices: int,
    container: RequestingContainer | None,
    cluster: ClusterReporter,
    log: Logger,
) -> None:
    if container:
        cluster.add_event(container.pod.identity, Reason.ALLOCATION_REFUSED, str(error))
    log.warning("allocation refused", devices=devices, reason=str(error))


class PercentPlugin:
    def __init__(self, devices: NodeDevices, cluster: ClusterReporter) -> None:
        self._node = devices
        self._cluster = cluster
        self._log = logger(role="device plugin")

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        return self._node.percent.follow()

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        container = self._node.guess("percent", size)
        available = self._node.not_given(available, size, container)
        free = sorted(set(available).difference(must_include), key=rules.number_of)
        return [*must_include, *free][:size]

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """InvalidInput where so many percents are no share of a GPU."""
        async with self._node.one_at_a_time:
            container = await self._node.container_for("percent", len(ids))
            try:
                self._node.refuse_taken(ids, container, self._cluster)
                percent = rules.allocate_percent(ids, container, self._node.policy())
            except InvalidInput as error:
                _report_refusal(error, len(ids), container, self._cluster, self._log)
                raise
            self._node.note("percent", ids, container, percent)
        return rules.percent_answer(percent)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Percents never defer a start."""
