"""Serves kubelet's DRA plugin API and the health of the devices, on one socket.

Kubelet finds the socket in its plugins_registry by itself, also after it has restarted, so nothing
is registered from here. Sources: k8s.io/kubelet/pkg/apis, dra/v1, dra-health/v1alpha1 and
pluginregistration/v1.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from mpsd.kubelet.api import dra_health_pb2 as health_wire
from mpsd.kubelet.api import dra_health_pb2_grpc as health_services
from mpsd.kubelet.api import dra_pb2 as wire
from mpsd.kubelet.api import dra_pb2_grpc as services
from mpsd.kubelet.api import pluginregistration_pb2 as registration_wire
from mpsd.kubelet.api import pluginregistration_pb2_grpc as registration_services
from mpsd.kubelet.dra.driver import ClaimDriver
from mpsd.kubelet.dra.rules import cdi
from mpsd.kubelet.plugin_server import SocketServer, StartDeferred, reason_of
from mpsd.model.problem import InvalidInput
from mpsd.platform import clock
from mpsd.platform.event_loop import Watchable
from mpsd.platform.kube import KubeError
from mpsd.platform.logs import logger

_VERSIONS = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
_LOOK_S = 0.5
_STOP_S = 2.0
_HEALTH_S = 10.0  # kubelet takes a device for unknown after 30 s without news
_EXPECTED = (InvalidInput, StartDeferred, KubeError, OSError)
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in its stubs alone


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """trouble: why programs on it cannot be well; empty while they can."""

    pool: str
    device: str
    trouble: str


class DraServer(
    SocketServer,
    services.DRAPluginServicer,
    health_services.DRAResourceHealthServicer,
    registration_services.RegistrationServicer,
):
    """folder: kubelet's plugins_registry."""

    def __init__(self, driver: str, folder: Path, claims: ClaimDriver) -> None:
        log = logger(role="DRA driver", driver=driver)
        super().__init__(folder / f"{driver}-reg.sock", _STOP_S, log)
        self._driver = driver
        self._claims = claims
        self.health = Watchable[tuple[DeviceHealth, ...]](())

    async def _serve(self) -> None:
        await self.start()
        while self.reachable:  # noqa: ASYNC110  a file of another process
            await asyncio.sleep(_LOOK_S)
        self._log.info("registering again", reason="socket gone")

    def _add_to(self, server: grpc.aio.Server) -> None:
        registration_services.add_RegistrationServicer_to_server(self, server)
        services.add_DRAPluginServicer_to_server(self, server)
        health_services.add_DRAResourceHealthServicer_to_server(self, server)

    # -- registration

    async def GetInfo(  # noqa: N802
        self, _request: registration_wire.InfoRequest, _context: _Context
    ) -> registration_wire.PluginInfo:
        return registration_wire.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._path),
            supported_versions=_VERSIONS,
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration_wire.RegistrationStatus, _context: _Context
    ) -> registration_wire.RegistrationStatusResponse:
        refusal = f"kubelet refuses the driver: {request.error}"
        if request.plugin_registered:
            refusal = ""
        self._say(refusal)
        return registration_wire.RegistrationStatusResponse()

    # -- claims

    async def NodePrepareResources(  # noqa: N802
        self, request: wire.NodePrepareResourcesRequest, _context: _Context
    ) -> wire.NodePrepareResourcesResponse:
        async def prepare(asked: wire.Claim) -> wire.NodePrepareResourceResponse:
            claim, others = await self._claims.prepare(asked.namespace, asked.name, asked.uid)
            devices = [
                wire.Device(
                    request_names=[one.request],
                    pool_name=one.pool,
                    device_name=one.device,
                    cdi_device_ids=[cdi.name_of(self._driver, claim.uid, one.device), *others],
                    share_id=one.share or None,
                )
                for one in claim.devices
            ]
            return wire.NodePrepareResourceResponse(devices=devices)

        answers = await self._answers(request, prepare, wire.NodePrepareResourceResponse)
        return wire.NodePrepareResourcesResponse(claims=answers)

    async def NodeUnprepareResources(  # noqa: N802
        self, request: wire.NodeUnprepareResourcesRequest, _context: _Context
    ) -> wire.NodeUnprepareResourcesResponse:
        async def unprepare(asked: wire.Claim) -> wire.NodeUnprepareResourceResponse:
            await self._claims.unprepare(asked.uid)
            return wire.NodeUnprepareResourceResponse()

        answers = await self._answers(request, unprepare, wire.NodeUnprepareResourceResponse)
        return wire.NodeUnprepareResourcesResponse(claims=answers)

    async def _answers(
        self, request: Any, answer: Callable[[wire.Claim], Awaitable[Any]], refused: Any
    ) -> dict[str, Any]:
        """By uid; where it went wrong, `refused` with the reason, for the pod's events."""
        answers = {}
        for claim in request.claims:
            try:
                answers[claim.uid] = await answer(claim)
            except _EXPECTED as error:
                why = reason_of(error)
                name = f"{claim.namespace}/{claim.name}"
                self._log.warning("claim deferred", claim=name, reason=why)
                answers[claim.uid] = refused(error=why)
        return answers

    # -- health

    async def NodeWatchResources(  # noqa: N802
        self, _request: health_wire.NodeWatchResourcesRequest, context: _Context
    ) -> None:
        async def write(devices: Sequence[DeviceHealth]) -> None:
            listed = [_health(one) for one in devices]
            await context.write(health_wire.NodeWatchResourcesResponse(devices=listed))

        await self.send(self.health.follow(_HEALTH_S), write)


def _health(one: DeviceHealth) -> health_wire.DeviceHealth:
    return health_wire.DeviceHealth(
        device=health_wire.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
        health=health_wire.UNHEALTHY if one.trouble else health_wire.HEALTHY,
        last_updated_time=int(clock.wall_s()),
        message=one.trouble,
    )
