"""The agent's part on a node of a cluster. While kubelet or the API server is unavailable, the
node's limits stay."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from mpsd.agent.agent import AgentRole
from mpsd.cli.foreground import CannotServe
from mpsd.kubelet import pod_ends
from mpsd.kubelet.device_plugins import MemoryPlugin, NodeDevices, PercentPlugin
from mpsd.kubelet.dra.driver import ClaimPlace
from mpsd.kubelet.dra.node import NodeClaims
from mpsd.kubelet.dra.rules.slices import ServedBy, WayKnown, next_serving
from mpsd.kubelet.ledger import KubeletGrants, are_same
from mpsd.kubelet.plugin_server import PluginServer
from mpsd.kubelet.pod_ends import PodEnds
from mpsd.kubelet.rules.allocation import NodeConditions
from mpsd.kubelet.rules.gpu_choice import annotations_for
from mpsd.kubelet.rules.ledger import ContainerDevices, Held, by_name
from mpsd.kubelet.rules.node_pods import NodePod, PodKey, read_node_pod
from mpsd.kubelet.rules.ungranted import late, since, without_devices
from mpsd.kubelet.settings import KubeletSettings
from mpsd.model.domain import Domain, drains, read_cordoned, unknown_cordons
from mpsd.model.events import Reason
from mpsd.model.grants import Gpu
from mpsd.model.identity import PodName
from mpsd.model.metrics import PluginCalls
from mpsd.model.names import CLAIMS_LABEL
from mpsd.model.node_view import HeldGrant, NodeView
from mpsd.model.pod import Pod
from mpsd.model.policy import Policy
from mpsd.model.times import lasting
from mpsd.mps import drain
from mpsd.mps.node_gpus import Node
from mpsd.mps.records import NodeDomains
from mpsd.platform import life
from mpsd.platform.event_loop import Shortages, Throttle, until_one_ends
from mpsd.platform.kube import MPS_NODES, NODES, PODS, KubeError, Resource, Unavailable
from mpsd.platform.kube_access import open_kube
from mpsd.platform.kube_mirror import Mirror, Selection
from mpsd.platform.limits_files import PinnedResources
from mpsd.platform.listener import Listener, ListenerSettings, health_routes
from mpsd.platform.logs import logger
from mpsd.platform.rules.kubernetes_objects import KubernetesNode, read_kubernetes_node
from mpsd.platform.settings import CannotListen, ListenAddress, Settings
from mpsd.status.page.node import PodsOfNode
from mpsd.status.report import NodeReporter, ShutdownReport
from mpsd.status.rules.pods import PodAnnotations
from mpsd.watchdog.watchdog import SCAN_S, ClusterReporter

_LONGEST_BODY = 4096
# the start of one pod changes it half a dozen times
_LOOKS_APART_S = 1.0
_EVICTION_LOOK_S = 10.0
_CORDON_AGAIN_S = 1.0
_UNALLOCATED = (
    "it runs without the devices it requests, so without limits: kubelet accepted it while the"
    " device plugin was unavailable; it is evicted, so that it is recreated"
)
_UPGRADE = "the driver of its node is upgraded, and the policy has driver_upgrade: evict"
_UNSEEN = read_kubernetes_node({})


class HolderAnnotations:
    """What is written on each pod that holds devices."""

    def __init__(self, gpus: Callable[[], Sequence[Gpu]], policy: Callable[[], Policy]) -> None:
        self._gpus = gpus
        self._policy = policy
        self._made_from: tuple[object, ...] = ()
        self._now: Sequence[PodAnnotations] = ()
        self._since_ns: dict[str, int] = {}  # by uid

    def of(self, pods: Sequence[NodePod], held: Held, now: float) -> Sequence[PodAnnotations]:
        """The very same as before where nothing has changed. now: seconds since 1970."""
        policy = self._policy()
        gpus = self._gpus()
        if are_same((held, pods, policy, gpus), self._made_from):
            return self._now
        by_pod: dict[PodKey, list[ContainerDevices]] = {}
        for one in held:
            by_pod.setdefault(one.pod, []).append(one)
        holders = [pod for key, pod in by_name(pods).items() if key in by_pod]
        self._since_ns = {pod.uid: self._since_ns.get(pod.uid, int(now * 1e9)) for pod in holders}
        found = []
        for pod in holders:
            wants = annotations_for(pod, by_pod[pod.key], gpus, policy, self._since_ns[pod.uid])
            found.append(PodAnnotations(pod.identity, pod.annotations, wants))
        self._made_from = held, pods, policy, gpus
        self._now = found
        return found


class KubeletNode:
    """Owns the ledger of its agent, and acts on what that sees. wake: makes the agent look.
    CannotServe where no way to the API server is configured."""

    def __init__(
        self,
        kubelet: KubeletSettings,
        settings: Settings,
        node: Node,
        policy_now: Callable[[], Policy],
        domains: NodeDomains,
        wake: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._kubelet = kubelet
        self._node = node
        self.name = kubelet.node
        try:
            self._kube = kube = open_kube(kubelet.kubeconfig)
        except Unavailable as error:
            raise CannotServe(str(error)) from None
        self._domains = domains
        self._cordoned: tuple[Domain, ...] = ()  # the domains whose cordons are written
        self._held: Sequence[HeldGrant] = ()
        self._unevicted: dict[PodName, str] = {}  # why, of pods that a budget protects
        self._log = logger(role="kubelet node")
        self._shortages = Shortages(self._log)
        self._policy = policy = PinnedResources(policy_now, self._log)
        self._pods = Mirror[NodePod](
            kube,
            self._selected(PODS, "spec.nodeName", Pod),
            lambda thing: read_node_pod(thing, policy()),
            Throttle(wake, _LOOKS_APART_S).ask,
            lambda pod: not pod.requests,
            self._on_pod,
        )
        self._cordons = Mirror(
            kube, self._selected(MPS_NODES, "metadata.name"), read_cordoned, self._cordon
        )
        self._this_node = Mirror(
            kube, self._selected(NODES, "metadata.name"), read_kubernetes_node, self._on_node
        )
        address = ListenAddress(kubelet.address, kubelet.port)
        probes = health_routes(self._trouble)
        self._probes = Listener(probes, address, ListenerSettings(_LONGEST_BODY))
        self._report = NodeReporter(
            kube, kubelet.node, policy, kubelet.startup_taint, self._is_offered
        )
        self._shutdown = ShutdownReport(kube, kubelet.node, policy, self._log)
        self._ends: PodEnds  # from `run` on
        self._plugins: tuple[PluginServer, ...] = ()
        self._claims: NodeClaims | None = None  # before `run`
        self._serving, self._serving_changed = ServedBy.UNDECIDED, asyncio.Event()
        self.calls = PluginCalls(time.monotonic)
        self.pods = PodsOfNode(kube, kubelet.node, policy)
        self._annotations = HolderAnnotations(lambda: node.gpus, policy)
        journal = settings.run_directory / "agent" / "journal.json"
        self.ledger = KubeletGrants(
            kubelet.pod_resources, journal, self._pods, domains, policy, self._log
        )
        self._recount = Throttle(self.ledger.count, SCAN_S)

    def _selected(
        self, resource: Resource, field: str, fields: type[Any] | None = None
    ) -> Selection:
        query = {"fieldSelector": f"{field}={self.name}"}
        return Selection(resource, query=query, fields=fields)

    @property
    def _here(self) -> KubernetesNode:
        """This Node; without labels before it is seen."""
        return next(iter(self._this_node.objects()), _UNSEEN)

    async def start(self) -> None:
        """CannotServe where another process has the port."""
        try:
            await self._probes.start()
        except CannotListen as error:
            raise CannotServe(str(error)) from None

    async def run(self, agent: AgentRole, stop: asyncio.Event) -> None:
        """Until `stop`. The device plugins or the DRA driver register after the agent's first look;
        what was given the other way counts until its pods are gone."""
        kubelet = self._kubelet
        node = self._node
        devices = NodeDevices(node, self._domains, agent, self.ledger, self._policy)
        directory = self._settings.run_directory
        lists = (kubelet.device_list_strategy, node.extra, node.shared, node.device_lists)
        conditions = NodeConditions(str(directory), *lists)
        place = ClaimPlace(
            kubelet.dra_driver,
            self.name,
            lambda: node.gpus,
            directory / "agent" / "claims.json",
            kubelet.cdi_directory,
            kubelet.plugins_registry,
            conditions,
        )
        self._claims = claims = NodeClaims(place, agent, self.ledger, self._kube, self._policy)
        ends_file = directory / "agent" / pod_ends.FILE
        self._ends = PodEnds(ends_file, self._pods, agent.watchdog, self._policy, self._log)
        self._ends.load()
        agent.watchdog.on_scan = self._ends.look
        self._decide()
        seen = asyncio.Event()

        def on_view(view: NodeView) -> None:
            devices.update(view, is_left=bool(self._here.driver_upgrade))
            self._decide()
            claims.update(view)
            self._held = view.grants
            if self._cordoned is not self._domains.now:
                self._cordon()
            annotations = self._annotations.of(
                self.ledger.pods_seen, self.ledger.held_devices, view.now
            )
            self._report.report(view, annotations, agent.watchdog.seen())
            seen.set()

        agent.on_view = on_view
        self._report.on_event = agent.events.add
        agent.watchdog.cluster = reporter = ClusterReporter(self._report.add_event, self._evict)
        resources = self._policy().resources
        memory = MemoryPlugin(devices, conditions, reporter)
        percent = PercentPlugin(devices, reporter)
        folder = kubelet.device_plugins
        note = self.calls.note
        self._plugins = (
            PluginServer(resources.memory, folder, "mpsd-memory.sock", memory, note),
            PluginServer(resources.percent, folder, "mpsd-percent.sock", percent, note),
        )
        try:
            await self._follow(claims, stop, seen)
        finally:
            await self._probes.stop()
            self._kube.close()

    def _decide(self) -> None:
        """Decides how the GPUs are served: by the agent's flags, or by a label of the Node."""
        serving = ServedBy.PLUGINS
        if self._kubelet.dra_driver:
            serving = ServedBy.CLAIMS
            if self._policy().claim_nodes == "labelled":
                serving = next_serving(self._serving, self._way_known())
        if serving is not self._serving:
            self._log.info("GPUs served", how=serving.value, before=self._serving.value)
            self._serving = serving
            self._serving_changed.set()

    def _way_known(self) -> WayKnown:
        ledger = self.ledger
        held = label = None
        if ledger.is_answered and not ledger.claims_unknown:
            held = any(one.memory for one in ledger.held_devices)
        if self._this_node.objects():
            label = self._here.labels.get(CLAIMS_LABEL, "")
        return WayKnown(label, any(not claim.left for claim in ledger.claims), held)

    async def _serve(self, claims: NodeClaims, seen: asyncio.Event) -> None:
        """Serves one way, and the other where that is decided."""
        await seen.wait()  # which GPUs serve is not known before
        while True:
            self._serving_changed.clear()
            claims.serves = self._serving is ServedBy.CLAIMS
            served = [claims.serve()] if claims.serves else [one.run() for one in self._services]
            changed = asyncio.create_task(self._serving_changed.wait())
            tasks = [asyncio.create_task(one) for one in served]
            try:
                await until_one_ends([changed, *tasks])
                if claims.serves and changed.done():
                    await claims.withdraw()
            finally:
                for task in (changed, *tasks):
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    @property
    def _services(self) -> tuple[PluginServer, ...]:
        """The device plugins, where the GPUs are served by them."""
        return self._plugins if self._serving is ServedBy.PLUGINS else ()

    async def _follow(self, claims: NodeClaims, stop: asyncio.Event, seen: asyncio.Event) -> None:
        async with life.Tasks() as tasks:
            tasks.create_task(self._report.run(stop))
            mirrors = (self._pods, self._cordons, self._this_node)
            runs = [mirror.run() for mirror in mirrors]
            runs += [self._serve(claims, seen), claims.run()]
            runs += [self._end_unallocated(), self._empty_for_upgrade()]
            loops = [tasks.create_task(one) for one in runs]
            await stop.wait()
            await self._shutdown.announce()
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._shutdown.write()

    def unheard(self) -> str:
        """What of the cluster is not heard of, and why; empty while the API server answers."""
        for mirror in (self._pods, self._cordons):
            if isinstance(mirror.trouble, Unavailable):
                what = "new pods and cordons: the API server has not answered"
                if mirror.out_of_sync_s:
                    what += f" for {lasting(mirror.out_of_sync_s)}"
                return f"{what} ({mirror.trouble})"
        return ""

    def claims(self) -> tuple[str, str]:
        """The driver of resource claims, and why they cannot be served now; both empty where none
        are."""
        if self._serving is not ServedBy.CLAIMS:
            return "", ""
        return self._kubelet.dra_driver, self._claims.trouble if self._claims else ""

    def upgrade_state(self) -> str:
        """How far an upgrade of the node's driver is; empty without one."""
        return self._here.upgrade_state

    def _trouble(self) -> str:
        missing = [service.resource for service in self._services if service.trouble]
        if missing:
            return f"not registered with kubelet: {' and '.join(missing)}"
        if not self._claims:
            return "before the first look"
        if self._serving is ServedBy.UNDECIDED:
            why = f"the label {CLAIMS_LABEL} of the Node has not been read"
            return f"whether claims are served is not known: {why}"
        return f"claims: {self._claims.trouble}" if self._claims.trouble else ""

    def _on_pod(self, before: NodePod | None, now: NodePod | None) -> None:
        self._recount.ask()
        self._ends.see(before, now)

    def _cordon(self) -> None:
        """Asks `mpsd control` to drain what is cordoned, or every domain by a label of the Node;
        again if it cannot be written."""
        if not (self._cordons.synced and self._this_node.synced):
            return  # what an earlier agent asked holds until both are known
        cordoned = frozenset[str]().union(*self._cordons.objects())
        domains = self._domains.now
        asked = drains(cordoned, domains, self._here.nvidia_mps, self._here.driver_upgrade)
        again = asyncio.get_running_loop().call_later(_CORDON_AGAIN_S, self._cordon)
        with self._shortages.survived("cordon"):
            for domain in domains:
                folder = self._settings.domain(domain.name)
                if domain.name in asked and drain.ask(folder, asked[domain.name]):
                    self._log.info("drain asked", domain=domain.name, reason=asked[domain.name])
                elif domain.name not in asked and drain.withdraw(folder):
                    self._log.info("drain withdrawn", domain=domain.name)
            again.cancel()
            self._cordoned = domains
        for wrong in unknown_cordons(cordoned, domains):
            message = f"spec.cordoned of the MPSNode names {wrong}, which is not a GPU of this node"
            self._report.add_event(None, Reason.CORDON_UNKNOWN, message)

    def _on_node(self) -> None:
        for node in self._this_node.objects():
            self._report.see(node)
        self._cordon()

    def _is_offered(self) -> bool:
        """Whether new pods find the GPUs, which kubelet counts some time after a plugin has
        registered."""
        memory = self._policy().resources.memory
        counted = self._here.allocatable.get(memory, "0") != "0"
        return not self._trouble() and (counted or self._serving is ServedBy.CLAIMS)

    async def _end_unallocated(self) -> None:
        """Evicts pods that run without their devices: they have no limit."""
        first_seen: dict[str, float] = {}
        while True:
            await asyncio.sleep(_EVICTION_LOOK_S)
            ledger = self.ledger
            now = time.monotonic()
            known = (ledger.pods_seen, ledger.held_devices, ledger.listed, ledger.entries)
            found = without_devices(*known) if ledger.is_answered else ()
            first_seen = since(first_seen, found, now)
            unallocated = late(first_seen, found, now)
            ledger.set_unallocated(frozenset(pod.uid for pod in unallocated))
            for pod in unallocated:
                self._report.add_event(pod.identity, Reason.LIMITS_MISMATCH, _UNALLOCATED)
                await self._evict(pod.identity, _UNALLOCATED)

    async def _empty_for_upgrade(self) -> None:
        """Evicts the pods that an upgrade of the driver waits for, where the policy says so. A
        static pod stays."""
        while True:
            await asyncio.sleep(_EVICTION_LOOK_S)
            if not self._here.is_upgrade_waiting or self._policy().driver_upgrade != "evict":
                continue
            seen = {pod.uid: pod for pod in self.ledger.pods_seen}
            stay = {uid for uid, pod in seen.items() if pod.terminating or pod.static_uid}
            pods = {pod for held in self._held for pod in held.grant.pods if pod.uid not in stay}
            self._unevicted = {pod: why for pod, why in self._unevicted.items() if pod in pods}
            for pod in sorted(pods, key=str):
                await self._evict(pod, _UPGRADE)

    async def _evict(self, pod: PodName, why: str) -> None:
        """Where it fails, kubelet retries the pod's start, which evicts it again."""
        try:
            await self._kube.evict(pod.name, pod.namespace, pod.uid)
        except KubeError as error:
            if self._unevicted.get(pod) != str(error):
                self._log.warning("not evicted", pod=str(pod), reason=str(error))
            self._unevicted[pod] = str(error)
            return
        self._unevicted.pop(pod, None)
        self._log.info("evicted", pod=str(pod), reason=why)
        self._report.add_event(pod, Reason.EVICTED, why)
