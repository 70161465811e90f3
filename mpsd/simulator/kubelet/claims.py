"""The DRA manager of the simulated kubelet: which drivers there are, and which resource claims they
have prepared.

It does what kubelet's does: names in brackets are functions of pkg/kubelet/cm/dra/manager.go. What
is left out: alternatives of a request, and the deletion of the slices of a driver that has left.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import msgspec

from mpsd.kubelet.api import dra_pb2 as wire
from mpsd.kubelet.api import pluginregistration_pb2 as registration
from mpsd.kubelet.api.dra_pb2_grpc import DRAPluginStub
from mpsd.kubelet.api.pluginregistration_pb2_grpc import RegistrationStub
from mpsd.kubelet.client import SocketIdentity, dial, identity_of
from mpsd.kubelet.rules.allocation import Answer
from mpsd.model.grants import DeviceNode, HostMount
from mpsd.simulator.kubelet.plugins import PluginFailed
from mpsd.simulator.kubelet.pods import KubeletPace, SimContainer, SimPod
from mpsd.simulator.kubelet.sources import PodSource, SourceUnavailable

CHECKPOINT = "dra_manager_state"
_ANSWER_S = 45.0  # as kubelet waits
_READ_ONLY = "ro"


@dataclass(slots=True)
class ClaimInfo:
    """A claim that a pod of this node has had prepared. drivers: who holds a part of it. devices:
    the CDI devices of each of its requests. is_prepared: by this kubelet, and not only by an
    earlier one."""

    namespace: str
    name: str
    uid: str
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    devices: dict[str, list[str]] = field(default_factory=dict)
    is_prepared: bool = False


class ClaimManager:
    """folder: kubelet's root. cdi: where the container runtime looks for devices."""

    def __init__(self, folder: Path, cdi: Path, source: PodSource, pace: KubeletPace) -> None:
        self._registry = folder / "plugins_registry"
        self._file = folder / CHECKPOINT
        self._cdi = cdi
        self._source = source
        self._pace = pace
        self._drivers: dict[str, tuple[Path, SocketIdentity]] = {}
        self._refused: dict[Path, SocketIdentity] = {}
        self._claims: dict[str, ClaimInfo] = {}  # by uid
        # of each claim
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    def load(self) -> None:
        """Before anything else: what an earlier kubelet has had prepared."""
        self._registry.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            self._claims = msgspec.json.decode(self._file.read_bytes(), type=dict[str, ClaimInfo])
        for claim in self._claims.values():
            claim.is_prepared = False

    def _save(self) -> None:
        made = self._file.with_name(f"{CHECKPOINT}.new")
        made.write_bytes(msgspec.json.encode(self._claims))
        made.rename(self._file)

    # -- drivers

    async def look(self) -> None:
        """Registers the drivers whose sockets have come, and forgets those whose sockets are
        gone."""
        sockets = {path: identity_of(path) for path in sorted(self._registry.glob("*.sock"))}
        self._drivers = {
            name: known
            for name, known in self._drivers.items()
            if sockets.get(known[0]) == known[1]
        }
        known = {**dict(self._drivers.values()), **self._refused}
        for path, identity in sockets.items():
            if identity and known.get(path) != identity:
                with suppress(grpc.aio.AioRpcError):  # it does not answer yet
                    await self._register(path, identity)

    async def _register(self, path: Path, identity: SocketIdentity) -> None:
        async with dial(path) as channel:
            stub = RegistrationStub(channel)
            info = await stub.GetInfo(registration.InfoRequest(), timeout=self._pace.dial_s)
            takes = info.type == "DRAPlugin" and "v1.DRAPlugin" in info.supported_versions
            why = (
                ""
                if takes
                else f"plugin type {info.type} with versions {list(info.supported_versions)}"
            )
            answer = registration.RegistrationStatus(plugin_registered=takes, error=why)
            await stub.NotifyRegistrationStatus(answer, timeout=self._pace.dial_s)
        if takes:
            self._drivers[info.name] = (Path(info.endpoint), identity)
        else:
            self._refused[path] = identity

    async def _call(self, driver: str, method: str, request: Any, uid: str) -> Any:
        """What the driver answers for the claim of this uid. PluginFailed."""
        if driver not in self._drivers:
            raise PluginFailed(f"DRA driver {driver} is not registered")
        async with dial(self._drivers[driver][0]) as channel:
            try:
                answer = await getattr(DRAPluginStub(channel), method)(request, timeout=_ANSWER_S)
            except grpc.aio.AioRpcError as error:
                raise PluginFailed(f"{method} of {driver} failed: {error.details()}") from None
        if uid not in answer.claims:
            raise PluginFailed(f"{method} of {driver} did not answer for claim {uid}")
        if answer.claims[uid].error:
            raise PluginFailed(
                f"{method} failed for ResourceClaim {uid}: {answer.claims[uid].error}"
            )
        return answer.claims[uid]

    # -- claims

    async def prepare(self, pod: SimPod) -> None:
        """Before a pod's first container, also once more by a kubelet that was started anew.
        PluginFailed holds the pod back. [PrepareResources]"""
        for name in pod.claims.values():
            if not name:
                raise PluginFailed("a claim of the pod is not made yet")
            async with self._locks[pod.namespace, name]:
                await self._prepare(pod, name)

    async def _prepare(self, pod: SimPod, name: str) -> None:
        try:
            thing = await self._source.claim(pod.namespace, name)
        except SourceUnavailable as away:
            raise PluginFailed(f"fetch ResourceClaim {name}: {away}") from None
        if not thing or not any(
            one["uid"] == pod.uid for one in thing.get("status", {}).get("reservedFor") or ()
        ):
            raise PluginFailed(f"pod {pod} is not allowed to use ResourceClaim {name}")
        uid = thing["metadata"]["uid"]
        results = thing["status"]["allocation"]["devices"]["results"]
        drivers = tuple(dict.fromkeys(one["driver"] for one in results))
        claim = self._claims.setdefault(uid, ClaimInfo(pod.namespace, name, uid, drivers))
        claim.pods.add(pod.uid)
        self._save()
        if claim.is_prepared:
            return
        for driver in drivers:
            asked = wire.NodePrepareResourcesRequest(
                claims=[wire.Claim(namespace=pod.namespace, name=name, uid=uid)]
            )
            answer = await self._call(driver, "NodePrepareResources", asked, uid)
            for device in answer.devices:
                for request in device.request_names:
                    claim.devices[request] = list(device.cdi_device_ids)
        claim.is_prepared = True
        self._save()

    async def unprepare(self, pod_uid: str) -> None:
        """After a pod's last container, before its end is told. PluginFailed where a driver does
        not let go. [UnprepareResources]"""
        for claim in [claim for claim in self._claims.values() if pod_uid in claim.pods]:
            async with self._locks[claim.namespace, claim.name]:
                await self._unprepare(claim, pod_uid)

    async def _unprepare(self, claim: ClaimInfo, pod_uid: str) -> None:
        if claim.pods == {pod_uid}:
            claim.is_prepared = False
            about = wire.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)
            asked = wire.NodeUnprepareResourcesRequest(claims=[about])
            for driver in claim.drivers:
                await self._call(driver, "NodeUnprepareResources", asked, claim.uid)
            self._claims.pop(claim.uid, None)
        claim.pods.discard(pod_uid)
        self._save()

    def holds(self, pod_uid: str) -> bool:
        """Whether the pod has a claim that was to be prepared."""
        return any(pod_uid in claim.pods for claim in self._claims.values())

    async def end_left(self, active: Collection[str]) -> None:
        """Lets go of what pods had that are gone. [reconcileLoop]"""
        for uid in {uid for claim in self._claims.values() for uid in claim.pods} - set(active):
            with suppress(PluginFailed):  # the next look tries again
                await self.unprepare(uid)

    # -- containers

    def given(self, pod: SimPod, container: SimContainer) -> Answer:
        """What the container runtime adds for the container's claims. PluginFailed where it does
        not know a device."""
        names = {pod.claims[each] for each in container.claims}
        held = [
            claim
            for claim in self._claims.values()
            if claim.namespace == pod.namespace and claim.name in names
        ]
        ids = dict.fromkeys(
            device for claim in held for request in claim.devices.values() for device in request
        )
        specs = [json.loads(path.read_text()) for path in sorted(self._cdi.glob("*.json"))]
        return _together(_edits(name, specs) for name in ids)


def _edits(name: str, specs: Iterable[Mapping[str, Any]]) -> Answer:
    kind, _, device = name.partition("=")
    found: Iterator[Mapping[str, Any]] = (
        one["containerEdits"]
        for spec in specs
        if spec["kind"] == kind
        for one in spec["devices"]
        if one["name"] == device
    )
    edits = next(found, None)
    if edits is None:
        if kind.startswith("nvidia.com/"):  # of a driver that is not simulated
            return Answer(cdi=(name,))
        raise PluginFailed(f"CDI device injection failed: unresolvable CDI devices {name}")
    return Answer(
        environment=dict(one.split("=", 1) for one in edits.get("env") or ()),
        mounts=tuple(
            HostMount(one["hostPath"], one["containerPath"], _READ_ONLY in one.get("options", ()))
            for one in edits.get("mounts") or ()
        ),
        devices=tuple(
            DeviceNode(one.get("hostPath", one["path"]), one["path"], one.get("permissions", "rwm"))
            for one in edits.get("deviceNodes") or ()
        ),
    )


def _together(answers: Iterable[Answer]) -> Answer:
    whole = Answer()
    for each in answers:
        whole = Answer(
            environment={**whole.environment, **each.environment},
            mounts=(*whole.mounts, *each.mounts),
            devices=(*whole.devices, *each.devices),
            cdi=(*whole.cdi, *each.cdi),
        )
    return whole
