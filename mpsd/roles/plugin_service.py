"""Keeps one resource registered with kubelet, whatever kubelet or anybody does to the sockets.

One rule: a resource is registered only while its socket answers, and anew as soon as either socket is another one.
"""

import asyncio

from mpsd.edge.device_plugin import KUBELET_SOCKET, Plugin, PluginServer, register
from mpsd.edge.kubelet_settings import KubeletSettings
from mpsd.edge.kubelet_socket import KubeletAway, KubeletRefused, identity_of
from mpsd.edge.logs import logger
from mpsd.edge.waiting import until

_LOOK_S = 0.25  # a stat of two sockets
_RETRY_S = 1.0
_FIRST_STREAM_S = 10.0  # a kubelet that has taken us and does not ask for our devices has forgotten us


class PluginService:
    """One resource of this node. endpoint: the name of its socket in kubelet's folder."""

    def __init__(self, resource: str, endpoint: str, plugin: Plugin, settings: KubeletSettings) -> None:
        self.resource = resource
        self._endpoint = endpoint
        self._plugin = plugin
        self._folder = settings.device_plugins
        self._log = logger(resource=resource)
        self._trouble = ""
        self.registered = False

    async def run(self) -> None:
        """Until it is cancelled; then kubelet is told that the resource is gone, by its socket going."""
        while True:
            server = PluginServer(self._folder, self._endpoint, self._plugin)
            try:
                await self._serve(server)
            except (KubeletAway, KubeletRefused) as error:
                self._say(str(error))
                await asyncio.sleep(_RETRY_S)
            finally:
                self.registered = False
                await server.stop()

    async def _serve(self, server: PluginServer) -> None:
        """From a socket of our own until it, or kubelet's, is another one."""
        kubelet = self._folder / KUBELET_SOCKET
        before = identity_of(kubelet)
        await server.start()
        await register(self._folder, self._endpoint, self.resource)
        await self._until_watched(server)
        self.registered = True
        self._say("")
        while True:
            await asyncio.sleep(_LOOK_S)
            if not server.reachable or identity_of(kubelet) != before:
                break
        self._log.info("registering again", reason="kubelet has started anew" if server.reachable else "socket gone")

    async def _until_watched(self, server: PluginServer) -> None:
        what = f"kubelet, which has registered {self.resource}, asks for its devices"
        try:
            await until(lambda: server.watchers, _FIRST_STREAM_S, what, look_again_s=_LOOK_S)
        except TimeoutError as error:
            raise KubeletAway(str(error)) from None

    def _say(self, trouble: str) -> None:
        """Once for each trouble, and once when it is over."""
        if trouble and trouble != self._trouble:
            self._log.warning("not registered", reason=trouble)
        if not trouble:
            self._log.info("registered")
        self._trouble = trouble
