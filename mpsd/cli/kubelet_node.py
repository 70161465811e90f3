"""The part of the agent that exists beside a kubelet: its ledger, the device plugin, and what the cluster is told.

One rule: everything here may be away (kubelet, the API server) without the node's limits changing.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

from aiohttp import web

from mpsd.agent.agent import AgentRole
from mpsd.cli.foreground import CannotServe
from mpsd.cli.running import NodeConfig
from mpsd.kubelet.call_counts import PluginCallCounts
from mpsd.kubelet.ledger import KubeletGrants, are_same
from mpsd.kubelet.plugins import MemoryPlugin, NodeDevices, PercentPlugin
from mpsd.kubelet.registration import PluginService
from mpsd.kubelet.rules.allocation import NodeConditions
from mpsd.kubelet.rules.gpu_choice import annotations_for
from mpsd.kubelet.rules.node_pods import Bystander, NodePod, read_bystander, read_node_pod
from mpsd.kubelet.rules.reconcile import PATIENCE_S, since, without_devices
from mpsd.kubelet.settings import KubeletSettings
from mpsd.model.domain import drains, read_cordoned, unknown_cordons
from mpsd.model.events import Event, Reason, node_subject, pod_subject
from mpsd.model.identity import PodName
from mpsd.model.node_view import NodeView
from mpsd.mps import drain
from mpsd.platform.event_loop import Throttle
from mpsd.platform.kube import MPS_NODES, PODS, Kube, KubeError, Resource, Unavailable, open_kube
from mpsd.platform.kube_mirror import Mirror, Selection
from mpsd.platform.limits_watch import PinnedResources
from mpsd.platform.listener import Handler, Listener, ListenerSettings, PortTaken, TcpAddress
from mpsd.platform.logs import logger
from mpsd.status.page.node import PodsOfNode
from mpsd.status.report import NodeReport, ShutdownReport
from mpsd.status.rules.pods import PodAnnotations
from mpsd.watchdog.watchdog import ClusterReporter

_LONGEST_BODY = 4096
_LOOKS_APART_S = 0.5  # that the API's pods ask for: the start of one pod is half a dozen changes of it
_UNALLOCATED_LOOK_S = 10.0
_UNALLOCATED = (
    "it runs without the devices it asks for, so without limits: kubelet took it while the device plugin was away; "
    "it is ended, so that another is made in its place"
)


class KubeletNode:
    """One node of a cluster. It makes the ledger that its agent goes by, and follows what the agent sees.

    CannotServe where it is not said how the API server is reached.
    """

    def __init__(self, kubelet: KubeletSettings, around: NodeConfig) -> None:
        settings, domains = around.settings, around.domains
        self._settings = settings
        self._kubelet = kubelet
        self._node = around.node
        self._kube = kube = _connected(kubelet)
        self._domains = domains
        self._log = logger(role="kubelet node")
        self._policy = policy = PinnedResources(around.policy, self._log)
        self._pods = Mirror[NodePod | Bystander](
            kube,
            self._selected(PODS, "spec.nodeName"),
            self._read_pod,
            Throttle(around.wake, _LOOKS_APART_S).ask,
            lambda pod: isinstance(pod, Bystander),
        )
        self._cordons = Mirror(kube, self._selected(MPS_NODES, "metadata.name"), read_cordoned, self._cordon)
        self._probes = Listener(
            self._routes(), TcpAddress(kubelet.address, kubelet.port), ListenerSettings(_LONGEST_BODY)
        )
        self._report = NodeReport(kube, kubelet.node, policy)
        self._leaving = ShutdownReport(kube, kubelet.node, policy, self._log)
        self._services: tuple[PluginService, ...] = ()
        self.calls = PluginCallCounts()
        self.pods = PodsOfNode(kube, kubelet.node, policy)
        self._since_ns: dict[str, int] = {}  # by the uid of each pod that holds devices
        self._marked: tuple[object, ...] = ()  # what `_marks_now` were made from
        self._marks_now: Sequence[PodAnnotations] = ()
        journal = settings.run_directory / "agent" / "journal.json"
        self.ledger = KubeletGrants(kubelet.pod_resources, journal, self._pods, domains, policy, self._log)

    def _selected(self, resource: Resource, field: str) -> Selection:
        return Selection(resource, query={"fieldSelector": f"{field}={self._kubelet.node}"})

    def _read_pod(self, thing: object) -> NodePod | Bystander | None:
        return read_node_pod(thing, self._policy()) or read_bystander(thing)

    @property
    def name(self) -> str:
        return self._kubelet.node

    async def start(self) -> None:
        """CannotServe where another process has the port."""
        try:
            await self._probes.start()
        except PortTaken as error:
            raise CannotServe(str(error)) from None

    async def run(self, agent: AgentRole, stop: asyncio.Event) -> None:
        """Until `stop`. The device plugin registers once the agent has looked for the first time."""
        devices = NodeDevices(self._node, self._domains, agent, self.ledger, self._policy)
        seen = asyncio.Event()

        def on_view(view: NodeView) -> None:
            devices.see(view)
            self._report.report(view, self._marks(view), agent.watchdog.violations())
            seen.set()

        agent.on_view = on_view
        self._report.on_happening = agent.events.add
        agent.watchdog.cluster = ClusterReporter(self._tell, self._evict)
        resources = self._policy().resources
        memory = MemoryPlugin(devices, self._surroundings(), self._report.happened, self._evict)
        self._services = (
            PluginService(resources.memory, "mpsd-memory.sock", memory, self._kubelet, self.calls.note),
            PluginService(
                resources.percent, "mpsd-percent.sock", PercentPlugin(devices), self._kubelet, self.calls.note
            ),
        )
        try:
            await self._follow(stop, seen)
        finally:
            await self._probes.stop()
            self._kube.close()

    async def _follow(self, stop: asyncio.Event, seen: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report.run(stop))
            loops = [tasks.create_task(mirror.run()) for mirror in (self._pods, self._cordons)]
            loops += [tasks.create_task(_after(seen, service)) for service in self._services]
            loops.append(tasks.create_task(self._end_unallocated()))
            await stop.wait()
            await self._leaving.announce()
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._leaving.repeat()

    def _surroundings(self) -> NodeConditions:
        node = self._node
        directory, strategy = str(self._settings.run_directory), self._kubelet.device_list_strategy
        return NodeConditions(directory, strategy, node.extra, node.shared, node.device_lists)

    def _routes(self) -> Mapping[str, Handler]:
        return {"GET /healthz": self._health, "GET /readyz": self._readiness}

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _request: web.Request) -> web.Response:
        """200 while kubelet has both resources from us."""
        missing = [service.resource for service in self._services if not service.registered]
        if self._services and not missing:
            return web.Response(text="ok\n")
        said = f"kubelet does not have {' and '.join(missing)} from us" if missing else "not looked yet"
        return web.Response(text=f"{said}\n", status=503)

    def _marks(self, view: NodeView) -> Sequence[PodAnnotations]:
        """What must be written on each pod that holds devices; the very same as before where nothing has changed."""
        sources = (self.ledger.held_devices, self.ledger.pods_seen, self._policy())
        if not are_same(sources, self._marked):
            self._marked, self._marks_now = sources, self._new_marks(view)
        return self._marks_now

    def _new_marks(self, view: NodeView) -> Sequence[PodAnnotations]:
        marks = []
        pods = {(pod.namespace, pod.name): pod for pod in self.ledger.pods_seen}
        for key, held in self.ledger.held_by_pod().items():
            pod = pods.get(key)
            if pod:
                since_ns = self._since_ns.setdefault(pod.uid, int(view.now * 1e9))
                wants = annotations_for(pod, held, self._node.gpus, self._policy(), since_ns)
                marks.append(PodAnnotations(pod.identity, pod.annotations, wants))
        here = {mark.pod.uid for mark in marks}
        self._since_ns = {uid: since_ns for uid, since_ns in self._since_ns.items() if uid in here}
        return marks

    def _cordon(self) -> None:
        """Asks `mpsd control` to drain what is cordoned, and lets the rest serve."""
        cordoned = frozenset[str]().union(*self._cordons.objects())
        asked = drains(cordoned, self._domains)
        for domain in self._domains:
            folder = self._settings.domain(domain.name)
            if domain.name in asked and drain.ask(folder, asked[domain.name]):
                self._log.info("drain asked", domain=domain.name, reason=asked[domain.name])
            elif domain.name not in asked and drain.withdraw(folder):
                self._log.info("drain withdrawn", domain=domain.name)
        for wrong in unknown_cordons(cordoned, self._domains):
            message = f"spec.cordoned of the MPSNode names {wrong}, which is no GPU of this node"
            self._report.happened(Event(node_subject(self._kubelet.node), Reason.CORDON_UNKNOWN, message))

    async def _end_unallocated(self) -> None:
        """Evicts pods that kubelet runs without having asked us for their devices: they have no limit."""
        first_seen: dict[str, float] = {}
        while True:
            await asyncio.sleep(_UNALLOCATED_LOOK_S)
            ledger, now = self.ledger, time.monotonic()
            seen = without_devices(ledger.pods_seen, ledger.held_devices, ledger.listed, ledger.entries)
            found = seen if ledger.is_answered else ()
            first_seen = since(first_seen, found, now)
            late = tuple(pod for pod in found if now - first_seen[pod.uid] >= PATIENCE_S)
            ledger.set_unallocated(frozenset(pod.uid for pod in late))
            for pod in late:
                self._report.happened(Event(pod_subject(pod.identity), Reason.LIMITS_MISMATCH, _UNALLOCATED))
                await self._evict(pod.identity, _UNALLOCATED)

    def _tell(self, pod: PodName | None, reason: Reason, message: str) -> None:
        subject = pod_subject(pod) if pod else node_subject(self._kubelet.node)
        self._report.happened(Event(subject, reason, message))

    async def _evict(self, pod: PodName, why: str) -> None:
        """Asks for the end of a pod; where that fails, kubelet asks for the start again, and so do we for the end."""
        try:
            await self._kube.evict(pod.name, pod.namespace, pod.uid)
        except KubeError as error:
            self._log.warning("not evicted", pod=str(pod), reason=str(error))
            return
        self._log.info("evicted", pod=str(pod), reason=why)
        self._report.happened(Event(pod_subject(pod), Reason.EVICTED, why))


def _connected(kubelet: KubeletSettings) -> Kube:
    try:
        return open_kube(kubelet.kubeconfig)
    except Unavailable as error:
        raise CannotServe(str(error)) from None


async def _after(seen: asyncio.Event, service: PluginService) -> None:
    """No device is offered before it is known what serves."""
    await seen.wait()
    await service.run()
