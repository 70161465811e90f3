"""The agent's part on a node of a cluster: its ledger, the device plugins, and its reports to the API server.

Kubelet and the API server may be unavailable; the node's limits stay as they are meanwhile.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

from aiohttp import web

from mpsd.agent.agent import AgentRole
from mpsd.cli.foreground import CannotServe
from mpsd.cli.running import NodeConfig
from mpsd.kubelet.device_plugin import PluginService
from mpsd.kubelet.ledger import KubeletGrants, are_same
from mpsd.kubelet.plugins import MemoryPlugin, NodeDevices, PercentPlugin
from mpsd.kubelet.rules.allocation import NodeConditions
from mpsd.kubelet.rules.gpu_choice import annotations_for
from mpsd.kubelet.rules.ledger import PATIENCE_S, ContainerDevices, by_name, since, without_devices
from mpsd.kubelet.rules.node_pods import Bystander, NodePod, PodKey, read_bystander, read_node_pod
from mpsd.kubelet.rules.plugin_calls import PluginCallCounts
from mpsd.kubelet.settings import KubeletSettings
from mpsd.model.domain import drains, read_cordoned, unknown_cordons
from mpsd.model.events import Event, Reason, node_subject, pod_subject
from mpsd.model.identity import PodName
from mpsd.model.node_view import NodeView
from mpsd.mps import drain
from mpsd.platform.event_loop import Throttle
from mpsd.platform.kube import MPS_NODES, PODS, KubeError, Resource, Unavailable, open_kube
from mpsd.platform.kube_mirror import Mirror, Selection
from mpsd.platform.limits_files import PinnedResources
from mpsd.platform.listener import Handler, Listener, ListenerSettings, PortTaken, TcpAddress
from mpsd.platform.logs import logger
from mpsd.status.page.node import PodsOfNode
from mpsd.status.report import NodeReport, ShutdownReport
from mpsd.status.rules.pods import PodAnnotations
from mpsd.watchdog.watchdog import ClusterReporter

_LONGEST_BODY = 4096
_LOOKS_APART_S = 0.5  # between looks that changes of pods cause: the start of one pod changes it half a dozen times
_UNALLOCATED_LOOK_S = 10.0
_UNALLOCATED = (
    "it runs without the devices it requests, so without limits: kubelet accepted it while the device plugin was "
    "unavailable; it is evicted, so that it is recreated"
)


class KubeletNode:
    """One node of a cluster: it owns the ledger of its agent, and acts on what the agent sees.

    CannotServe where no way to the API server is configured.
    """

    def __init__(self, kubelet: KubeletSettings, config: NodeConfig) -> None:
        settings, domains = config.settings, config.domains
        self._settings = settings
        self._kubelet = kubelet
        self._node = config.node
        try:
            self._kube = kube = open_kube(kubelet.kubeconfig)
        except Unavailable as error:
            raise CannotServe(str(error)) from None
        self._domains = domains
        self._log = logger(role="kubelet node")
        self._policy = policy = PinnedResources(config.policy, self._log)
        self._pods = Mirror[NodePod | Bystander](
            kube,
            self._selected(PODS, "spec.nodeName"),
            self._read_pod,
            Throttle(config.wake, _LOOKS_APART_S).ask,
            lambda pod: isinstance(pod, Bystander),
        )
        self._cordons = Mirror(kube, self._selected(MPS_NODES, "metadata.name"), read_cordoned, self._cordon)
        self._probes = Listener(
            self._routes(), TcpAddress(kubelet.address, kubelet.port), ListenerSettings(_LONGEST_BODY)
        )
        self._report = NodeReport(kube, kubelet.node, policy)
        self._shutdown = ShutdownReport(kube, kubelet.node, policy, self._log)
        self._services: tuple[PluginService, ...] = ()
        self.calls = PluginCallCounts(time.monotonic)
        self.pods = PodsOfNode(kube, kubelet.node, policy)
        self._since_ns: dict[str, int] = {}  # by the uid of each pod that holds devices
        self._annotated: tuple[object, ...] = ()  # what `_annotations` were made from
        self._annotations: Sequence[PodAnnotations] = ()
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
        """Until `stop`. The device plugins register after the agent's first look."""
        devices = NodeDevices(self._node, self._domains, agent, self.ledger, self._policy)
        seen = asyncio.Event()

        def on_view(view: NodeView) -> None:
            devices.update(view)
            self._report.report(view, self._pod_annotations(view), agent.watchdog.violations())
            seen.set()

        agent.on_view = on_view
        self._report.on_happening = agent.events.add
        agent.watchdog.cluster = ClusterReporter(self._add_event, self._evict)
        resources = self._policy().resources
        memory = MemoryPlugin(devices, self._conditions(), self._report.happened, self._evict)
        folder, note = self._kubelet.device_plugins, self.calls.note
        self._services = (
            PluginService(resources.memory, folder, "mpsd-memory.sock", memory, note),
            PluginService(resources.percent, folder, "mpsd-percent.sock", PercentPlugin(devices), note),
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
            await self._shutdown.announce()
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._shutdown.repeat()

    def _conditions(self) -> NodeConditions:
        node = self._node
        directory, strategy = str(self._settings.run_directory), self._kubelet.device_list_strategy
        return NodeConditions(directory, strategy, node.extra, node.shared, node.device_lists)

    def _routes(self) -> Mapping[str, Handler]:
        return {"GET /healthz": self._health, "GET /readyz": self._readiness}

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _request: web.Request) -> web.Response:
        """200 while both resources are registered with kubelet."""
        missing = [service.resource for service in self._services if not service.registered]
        if self._services and not missing:
            return web.Response(text="ok\n")
        reason = f"not registered with kubelet: {' and '.join(missing)}" if missing else "before the first look"
        return web.Response(text=f"{reason}\n", status=503)

    def _pod_annotations(self, view: NodeView) -> Sequence[PodAnnotations]:
        """What to write on each pod that holds devices; the very same as before where nothing has changed."""
        sources = (self.ledger.held_devices, self.ledger.pods_seen, self._policy())
        if are_same(sources, self._annotated):
            return self._annotations
        held: dict[PodKey, list[ContainerDevices]] = {}
        for one in self.ledger.held_devices:
            held.setdefault(one.pod, []).append(one)
        pods = [pod for key, pod in by_name(self.ledger.pods_seen).items() if key in held]
        self._since_ns = {pod.uid: self._since_ns.get(pod.uid, int(view.now * 1e9)) for pod in pods}
        self._annotated, self._annotations = sources, [self._annotations_of(pod, held[pod.key]) for pod in pods]
        return self._annotations

    def _annotations_of(self, pod: NodePod, held: Sequence[ContainerDevices]) -> PodAnnotations:
        wanted = annotations_for(pod, held, self._node.gpus, self._policy(), self._since_ns[pod.uid])
        return PodAnnotations(pod.identity, pod.annotations, wanted)

    def _cordon(self) -> None:
        """Asks `mpsd control` to drain what is cordoned, and to serve the rest."""
        cordoned = frozenset[str]().union(*self._cordons.objects())
        asked = drains(cordoned, self._domains)
        for domain in self._domains:
            folder = self._settings.domain(domain.name)
            if domain.name in asked and drain.ask(folder, asked[domain.name]):
                self._log.info("drain asked", domain=domain.name, reason=asked[domain.name])
            elif domain.name not in asked and drain.withdraw(folder):
                self._log.info("drain withdrawn", domain=domain.name)
        for wrong in unknown_cordons(cordoned, self._domains):
            message = f"spec.cordoned of the MPSNode names {wrong}, which is not a GPU of this node"
            self._report.happened(Event(node_subject(self._kubelet.node), Reason.CORDON_UNKNOWN, message))

    async def _end_unallocated(self) -> None:
        """Evicts pods that kubelet runs without having allocated their devices: they have no limit."""
        first_seen: dict[str, float] = {}
        while True:
            await asyncio.sleep(_UNALLOCATED_LOOK_S)
            ledger, now = self.ledger, time.monotonic()
            found = without_devices(ledger.pods_seen, ledger.held_devices, ledger.listed, ledger.entries)
            found = found if ledger.is_answered else ()
            first_seen = since(first_seen, found, now)
            late = tuple(pod for pod in found if now - first_seen[pod.uid] >= PATIENCE_S)
            ledger.set_unallocated(frozenset(pod.uid for pod in late))
            for pod in late:
                self._report.happened(Event(pod_subject(pod.identity), Reason.LIMITS_MISMATCH, _UNALLOCATED))
                await self._evict(pod.identity, _UNALLOCATED)

    def _add_event(self, pod: PodName | None, reason: Reason, message: str) -> None:
        subject = pod_subject(pod) if pod else node_subject(self._kubelet.node)
        self._report.happened(Event(subject, reason, message))

    async def _evict(self, pod: PodName, why: str) -> None:
        """Evicts a pod; where that fails, kubelet retries its start, which evicts it again."""
        try:
            await self._kube.evict(pod.name, pod.namespace, pod.uid)
        except KubeError as error:
            self._log.warning("not evicted", pod=str(pod), reason=str(error))
            return
        self._log.info("evicted", pod=str(pod), reason=why)
        self._report.happened(Event(pod_subject(pod), Reason.EVICTED, why))


async def _after(seen: asyncio.Event, service: PluginService) -> None:
    """Runs the service once it is known which GPUs serve."""
    await seen.wait()
    await service.run()
