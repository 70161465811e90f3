"""Which device plugins the simulated kubelet knows, and the devices they listed.

One rule: it does what kubelet's does, its mistakes among it: names in brackets are functions of kubelet's device
manager, in pkg/kubelet/cm/devicemanager/manager.go where no file is named.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

from mpsd.kubelet.api import deviceplugin_pb2 as wire
from mpsd.kubelet.rules.messages import Device
from mpsd.simulator.kubelet.kubelet_pace import Pace
from mpsd.simulator.kubelet.kubelet_plugins import Endpoint, PluginFailed
from mpsd.simulator.kubelet.kubelet_version import Version


class PluginTable:
    """By resource. changed: called when a list of devices has come."""

    def __init__(self, version: Version, changed: Callable[[], None], pace: Pace) -> None:
        self._version = version
        self._changed = changed
        self._pace = pace
        self._endpoints: dict[str, Endpoint] = {}
        self._clients: dict[str, list[Endpoint]] = {}  # of 1.36: those whose stream has not ended, the oldest first
        self._watched: set[Endpoint] = set()  # of 1.20
        self._streams: set[asyncio.Task[None]] = set()
        self._healthy: dict[str, set[str]] = {}
        self._unhealthy: dict[str, set[str]] = {}

    @property
    def resources(self) -> Iterable[str]:
        """Those that some plugin has listed devices of."""
        return self._healthy.keys()

    def healthy(self, resource: str) -> set[str]:
        return self._healthy.get(resource, set())

    def endpoint(self, resource: str) -> Endpoint:
        """PluginFailed where there has never been one."""
        if resource not in self._endpoints:
            raise PluginFailed(f"endpoint not found in cache for a registered resource: {resource}")
        return self._endpoints[resource]

    def expect(self, resources: Iterable[str]) -> None:
        """What an earlier kubelet knew: none of it can be had until its plugin registers. [readCheckpoint]"""
        for resource in resources:
            self._endpoints[resource] = Endpoint(resource, None)
            self._healthy[resource], self._unhealthy[resource] = set(), set()

    async def register(self, resource: str, socket: Path, options: wire.DevicePluginOptions) -> None:
        """PluginFailed where the plugin is to be told that it cannot be reached."""
        endpoint = Endpoint(resource, socket)
        if self._version.dials_before_it_answers:
            await self._connect(endpoint)
        else:
            endpoint.options = options
            self._in_background(self._add(endpoint))

    async def _add(self, endpoint: Endpoint) -> None:
        """Of 1.20: an older plugin of the resource goes on listing its devices, too. [addEndpoint, runEndpoint]"""
        try:
            await endpoint.dial(self._pace.dial_s)
        except PluginFailed:
            return
        self._watched.add(endpoint)
        self._endpoints[endpoint.resource] = endpoint
        await self._watch(endpoint)
        self._watched.discard(endpoint)
        await endpoint.hang_up()
        if self._endpoints.get(endpoint.resource) is endpoint:
            self._mark_unhealthy(endpoint.resource)

    async def _connect(self, endpoint: Endpoint) -> None:
        """Of 1.36. [connectClient in plugin/v1beta1/handler.go, PluginConnected]"""
        clients = self._clients.setdefault(endpoint.resource, [])
        if not self._version.knows_plugins_by_socket:
            clients.clear()
        clients.append(endpoint)
        try:
            await endpoint.dial(self._pace.dial_s)
            await endpoint.ask_options()
        except PluginFailed:
            clients.remove(endpoint)
            raise
        self._endpoints[endpoint.resource] = endpoint
        self._in_background(self._run(endpoint))

    async def _run(self, endpoint: Endpoint) -> None:
        """Of 1.36: a stream that ends stops the plugin that the resource has by then; 1.30 even hangs up on it.

        [runClient in plugin/v1beta1/handler.go, PluginDisconnected; kubernetes issues 121994 and 127803]
        """
        await self._watch(endpoint)
        clients = self._clients[endpoint.resource]
        if self._version.knows_plugins_by_socket:
            ended = next((client for client in clients if client.socket == endpoint.socket), None)
        else:
            ended = clients[-1] if clients else None
        if ended is None:
            return
        clients.remove(ended)
        await ended.hang_up()
        if endpoint.resource in self._endpoints:
            self._mark_unhealthy(endpoint.resource)
            self._endpoints[endpoint.resource].stop()

    async def _watch(self, endpoint: Endpoint) -> None:
        await endpoint.watch(lambda devices: self._listed(endpoint.resource, devices))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    def _listed(self, resource: str, devices: Iterable[Device]) -> None:
        """[genericDeviceUpdateCallback]"""
        self._healthy[resource], self._unhealthy[resource] = set(), set()
        for device in devices:
            (self._healthy if device.healthy else self._unhealthy)[resource].add(device.id)
        self._changed()

    def _mark_unhealthy(self, resource: str) -> None:
        self._unhealthy.setdefault(resource, set()).update(self._healthy.get(resource, ()))
        self._healthy[resource] = set()

    def amounts(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """The node's capacity, and what of it can be allocated. [GetCapacity]"""
        for resource in [each for each in self._healthy if self._is_long_gone(each)]:
            del self._endpoints[resource], self._healthy[resource], self._unhealthy[resource]
            self._changed()
        allocatable = {resource: len(ids) for resource, ids in self._healthy.items()}
        return {
            resource: count + len(self._unhealthy[resource]) for resource, count in allocatable.items()
        }, allocatable

    def _is_long_gone(self, resource: str) -> bool:
        stopped = self._endpoints[resource].stopped
        return stopped is not None and time.monotonic() - stopped > self._pace.forget_plugin_s

    async def stop(self) -> None:
        for task in list(self._streams):
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        clients = (client for some in self._clients.values() for client in some)
        for endpoint in {*self._endpoints.values(), *self._watched, *clients}:
            await endpoint.hang_up()
