"""Resource claims on one node: what is offered in the ResourceSlice, what kubelet has prepared, and
the health of the GPUs.

Kubelet deletes the slices of a driver that has left, and all of a node when it starts; so the agent
only has to write. Every write raises the generation of the pool above that of any slice there.
Where the node serves by device plugins, only what an earlier agent prepared counts.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mpsd.agent.agent import AgentRole
from mpsd.kubelet.dra.driver import ClaimDriver, ClaimPlace
from mpsd.kubelet.dra.plugin_server import DeviceHealth, DraServer
from mpsd.kubelet.dra.rules.slices import (
    Pool,
    device_name,
    devices,
    resource_slice,
    slice_name,
    trouble_of,
)
from mpsd.kubelet.ledger import KubeletGrants
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.platform import life
from mpsd.platform.kube import NODES, RESOURCE_SLICES, Conflict, Kube, KubeError, Object
from mpsd.platform.kube_mirror import Mirror, Selection
from mpsd.platform.logs import logger

CONTENT = "mpsd.io/content"  # an annotation: the checksum of the devices as they were written
_RETRY_S = 2.0
_WITHDRAWN_S = 5.0
_UNWRITTEN = "the ResourceSlice is not written yet"


@dataclass(frozen=True, slots=True)
class _Slice:
    """content: empty where mpsd did not write it."""

    name: str
    version: str
    generation: int
    content: str


def _read(thing: Object) -> _Slice:
    metadata = thing["metadata"]
    generation = int(thing["spec"]["pool"].get("generation") or 0)
    content = (metadata.get("annotations") or {}).get(CONTENT, "")
    return _Slice(metadata["name"], metadata["resourceVersion"], generation, content)


class SlicePublisher:
    """trouble: why the slice is not what it should be; empty while it is."""

    def __init__(self, kube: Kube, driver: str, node: str) -> None:
        self._kube = kube
        self._driver = driver
        self._node = node
        selected = {"fieldSelector": f"spec.nodeName={node},spec.driver={driver}"}
        self._news, self._written = asyncio.Event(), asyncio.Event()
        self._mirror = Mirror(
            kube, Selection(RESOURCE_SLICES, query=selected), _read, self._news.set
        )
        # None before the first look at the node
        self._wanted: Sequence[Mapping[str, Any]] | None = None
        self._log = logger(role="DRA driver")
        self.trouble = _UNWRITTEN

    def offer(self, devices: Sequence[Mapping[str, Any]]) -> None:
        if devices != self._wanted:
            self._wanted = devices
            self._written.clear()
            self._news.set()

    async def withdraw(self) -> None:
        """Offers nothing any more. Kubelet deletes the slice too, but half a minute later."""
        self.offer(())
        with suppress(TimeoutError):
            async with asyncio.timeout(_WITHDRAWN_S):
                await self._written.wait()

    async def run(self) -> None:
        self.trouble = _UNWRITTEN
        self._news.set()
        watching = life.background(self._mirror.run())
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                if self._wanted is None or not self._mirror.synced:
                    continue
                try:
                    await self._write(wanted := self._wanted)
                    self.trouble = ""
                    if wanted is self._wanted:
                        self._written.set()
                except KubeError as error:
                    # after a conflict the copy is behind, or somebody else wrote
                    if not isinstance(error, Conflict):
                        if self.trouble != str(error):
                            self._log.warning("ResourceSlice not written", reason=str(error))
                        self.trouble = str(error)
                    await asyncio.sleep(_RETRY_S)
                    self._news.set()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _write(self, wanted: Sequence[Mapping[str, Any]]) -> None:
        """KubeError where the API does not take it."""
        found = self._mirror.objects()
        own = slice_name(self._node, self._driver)
        content = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]
        ours = next((one for one in found if one.name == own), None)
        if ours is None or ours.content != content:
            uid = (await self._kube.get(NODES, self._node))["metadata"]["uid"]
            pool = Pool(self._driver, self._node, uid)
            thing = resource_slice(
                pool, max((one.generation for one in found), default=0) + 1, wanted
            )
            thing["metadata"]["annotations"] = {CONTENT: content}
            if ours is None:
                await self._kube.create(RESOURCE_SLICES, thing)
            else:
                thing["metadata"]["resourceVersion"] = ours.version
                await self._kube.replace(RESOURCE_SLICES, thing)
            self._log.info(
                "ResourceSlice written",
                devices=len(wanted),
                generation=thing["spec"]["pool"]["generation"],
            )


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
        """Offers what this look at the node found, where it is known what others hold. A claim that
        has left the scheduler does not count."""
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
        async with life.Tasks() as tasks:
            tasks.create_task(self._server.run())
            tasks.create_task(self._slices.run())

    async def withdraw(self) -> None:
        """Takes the GPUs from the scheduler's view, before the driver is served no longer."""
        self.serves = False
        await self._slices.withdraw()
