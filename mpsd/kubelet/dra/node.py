"""Resource claims on one node: what is offered to the scheduler, what kubelet has prepared, and the
health of the GPUs.

Where the node serves its GPUs by the device plugins, only what an earlier agent prepared is known
here, and counts.
"""

import asyncio
from collections.abc import Callable

from mpsd.agent.agent import AgentRole
from mpsd.kubelet.dra.driver import ClaimDriver, ClaimPlace
from mpsd.kubelet.dra.plugin_server import DeviceHealth, DraServer
from mpsd.kubelet.dra.rules.slices import device_name, devices, trouble_of
from mpsd.kubelet.dra.slices import SlicePublisher
from mpsd.kubelet.ledger import KubeletGrants
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.platform.kube import Kube


class NodeClaims:
    """To be made in the event loop. serves: whether the driver is served now, or is about to be."""

    def __init__(
        self,
        place: ClaimPlace,
        agent: AgentRole,
        ledger: KubeletGrants,
        kube: Kube,
        policy: Callable[[], Policy],
    ) -> None:
        self._place = place
        self._policy = policy
        self._ledger = ledger
        self._driver = ClaimDriver(place, agent, ledger, kube, policy)
        self._server = DraServer(place.driver, place.registry, self._driver)
        self._slices = SlicePublisher(kube, place.driver, place.pool)
        self.serves = bool(place.driver)
        self._driver.load()

    @property
    def trouble(self) -> str:
        """Why claims are not served; empty while they are."""
        return (self._server.trouble or self._slices.trouble) if self.serves else ""

    def update(self, view: NodeView) -> None:
        """Offers what this look at the node found. What others hold is not known in every look:
        then it stays. What a claim that has left still holds the scheduler does not count."""
        self._driver.note_pods()
        if not self.serves:
            return
        if view.grants_known:
            claimed = [claim.uid for claim in self._ledger.claims if not claim.left]
            self._slices.offer(devices(view, claimed, self._policy()))
        health = (
            DeviceHealth(self._place.pool, device_name(gpu), trouble_of(gpu, view))
            for gpu in view.gpus
        )
        self._server.health.set(tuple(health))

    async def run(self) -> None:
        """Until it is cancelled; what is prepared stays for the next agent."""
        await self._driver.run()

    async def serve(self) -> None:
        """Serves the driver until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._server.run())
            tasks.create_task(self._slices.run())

    async def withdraw(self) -> None:
        """Takes the GPUs from the scheduler's view, before the driver is served no longer."""
        self.serves = False
        await self._slices.withdraw()
