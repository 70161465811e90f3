"""Resource claims on one node: what is offered to the scheduler, what kubelet has prepared, and the health of the GPUs.

Where the node serves its GPUs by the device plugins, only what an earlier agent prepared is known here, and counts.
"""

import asyncio
from collections.abc import Callable

from mpsd.agent.agent import AgentRole
from mpsd.kubelet.dra.driver import ClaimDriver, DriverPlaces
from mpsd.kubelet.dra.plugin_server import DeviceHealth, DraServer
from mpsd.kubelet.dra.rules.claims import ClaimNode
from mpsd.kubelet.dra.rules.slices import device_name, devices, taint_of
from mpsd.kubelet.dra.slices import SlicePublisher
from mpsd.kubelet.ledger import KubeletGrants
from mpsd.kubelet.rules.allocation import NodeConditions
from mpsd.kubelet.settings import KubeletSettings
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.mps.node_gpus import Node
from mpsd.mps.records import NodeDomains
from mpsd.platform.kube import Kube
from mpsd.platform.settings import Settings


class NodeClaims:
    """To be made in the event loop."""

    def __init__(
        self,
        kubelet: KubeletSettings,
        settings: Settings,
        node: Node,
        domains: NodeDomains,
        agent: AgentRole,
        ledger: KubeletGrants,
        kube: Kube,
        policy: Callable[[], Policy],
    ) -> None:
        self._pool, self._node, self._policy, self._ledger = kubelet.node, node, policy, ledger
        directory, strategy = settings.run_directory, kubelet.device_list_strategy
        self._driver = ClaimDriver(
            ClaimNode(kubelet.dra_driver, kubelet.node, node.gpus, domains.now),
            domains,
            DriverPlaces(settings.run_directory / "agent" / "claims.json", kubelet.cdi_directory),
            ledger,
            kube,
            policy,
            NodeConditions(str(directory), strategy, node.extra, node.shared, node.device_lists),
            agent.until_allowed,
        )
        self._server = DraServer(kubelet.dra_driver, kubelet.plugins_registry, self._driver)
        self._slices = SlicePublisher(kube, kubelet.dra_driver, kubelet.node)
        self._serves = bool(kubelet.dra_driver)
        self._driver.load()

    @property
    def trouble(self) -> str:
        """Why claims are not served; empty while they are."""
        return (self._server.trouble or self._slices.trouble) if self._serves else ""

    def update(self, view: NodeView) -> None:
        """Offers what this look at the node found. What others hold is not known in every look: then it stays."""
        if view.grants_known:
            claimed = [claim.uid for claim in self._ledger.claims]
            self._slices.offer(devices(view, claimed, self._policy()))
        health = (DeviceHealth(self._pool, device_name(gpu), taint_of(gpu, view)) for gpu in self._node.gpus)
        self._server.health.set(tuple(health))

    async def run(self) -> None:
        """Until it is cancelled; what is prepared stays for the next agent."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._driver.run())
            if self._serves:
                tasks.create_task(self._server.run())
                tasks.create_task(self._slices.run())
