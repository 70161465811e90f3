"""Keeps one resource registered with kubelet, whatever kubelet or anybody does to the sockets.

One rule: a resource is registered only while its socket answers, and anew as soon as either socket is another one or
kubelet asks for its devices no more. Kubelet 1.26 to 1.35 may hang up on a plugin when another one of the same resource
ends, since it knows plugins by resource only (kubernetes issues 121994 and 127803).
"""

import asyncio

from mpsd.kubelet.device_plugin import KUBELET_SOCKET, OnCall, Plugin, PluginServer, register
from mpsd.kubelet.kubelet_socket import KubeletRefused, KubeletUnavailable, SocketIdentity, identity_of
from mpsd.kubelet.settings import KubeletSettings
from mpsd.platform.logs import logger
from mpsd.platform.waiting import until

_LOOK_S = 0.25  # a stat of two sockets
_RETRY_S = 1.0
_FIRST_STREAM_S = 10.0  # a kubelet that has taken us and does not ask for our devices has forgotten us


class PluginService:
    """One resource of this node. endpoint: the name of its socket in kubelet's folder. on_call: told of its calls."""

    def __init__(
        self, resource: str, endpoint: str, plugin: Plugin, settings: KubeletSettings, on_call: OnCall
    ) -> None:
        self.resource = resource
        self._endpoint = endpoint
        self._plugin = plugin
        self._on_call = on_call
        self._folder = settings.device_plugins
        self._log = logger(resource=resource)
        self._trouble = ""
        self.registered = False

    async def run(self) -> None:
        """Until it is cancelled; then kubelet is told that the resource is gone, by its socket going."""
        while True:
            server = PluginServer(self._folder, self._endpoint, self._plugin, on_call=self._on_call)
            try:
                await self._serve(server)
            except (KubeletUnavailable, KubeletRefused) as error:
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
        while not (reason := self._lost(server, before)):  # noqa: ASYNC110  mostly files of another process
            await asyncio.sleep(_LOOK_S)
        self.registered = False
        self._log.info("registering again", reason=reason)
        if identity_of(kubelet) == before:
            await server.stop()
            await asyncio.sleep(_RETRY_S)  # kubelet is to see the end of this one before it hears of the next

    def _lost(self, server: PluginServer, kubelet: SocketIdentity | None) -> str:
        """Why kubelet has to be told of us again; empty while it need not."""
        if identity_of(self._folder / KUBELET_SOCKET) != kubelet:
            return "kubelet has started anew"
        if not server.reachable:
            return "socket gone"
        return "" if server.watchers else "kubelet asks for our devices no more"

    async def _until_watched(self, server: PluginServer) -> None:
        what = f"kubelet, which has registered {self.resource}, asks for its devices"
        try:
            await until(lambda: server.watchers, _FIRST_STREAM_S, what, look_again_s=_LOOK_S)
        except TimeoutError as error:
            raise KubeletUnavailable(str(error)) from None

    def _say(self, trouble: str) -> None:
        """Once for each trouble, and once when it is over."""
        if trouble and trouble != self._trouble:
            self._log.warning("not registered", reason=trouble)
        if not trouble:
            self._log.info("registered")
        self._trouble = trouble
