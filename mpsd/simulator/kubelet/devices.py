"""The device manager of the simulated kubelet: which container gets which devices, and what it gets
for them.

It does what kubelet's does: names in brackets are functions of
pkg/kubelet/cm/devicemanager/manager.go. Whatever kubelet leaves to chance, the order of a Go map,
is left to chance here.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mpsd.kubelet.rules.allocation import Answer
from mpsd.model.container import Role
from mpsd.model.grants import DeviceNode, HostMount
from mpsd.simulator.kubelet.plugins import PluginFailed, PluginSocket, PluginTable
from mpsd.simulator.kubelet.pods import KubeletPace, SimContainer, SimPod, Version

# -- which devices each container holds, and what it gets for them, kept in a file
# What is here was answered by a plugin; kubelet gives it to a container again and again without
# asking.

Order = Callable[[Iterable[str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class ContainerHolding:
    """What one container holds of one resource."""

    ids: tuple[str, ...]
    answer: Answer


# by pod uid, container and resource
Holdings = dict[str, dict[str, dict[str, ContainerHolding]]]


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    held: Holdings
    resources: list[str]


class DeviceHoldings:
    """file: kubelet's checkpoint, in a format of our own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._held: Holdings = {}

    def of(self, uid: str, container: str) -> dict[str, ContainerHolding]:
        """By resource."""
        return self._held.get(uid, {}).get(container, {})

    def add(self, uid: str, container: str, resource: str, holding: ContainerHolding) -> None:
        self._held.setdefault(uid, {}).setdefault(container, {})[resource] = holding

    def keep_only(self, uids: Iterable[str]) -> bool:
        """Forgets every other pod; whether there was one."""
        kept = {uid: self._held[uid] for uid in uids if uid in self._held}
        shorter = len(kept) < len(self._held)
        self._held = kept
        return shorter

    def in_use(self) -> dict[str, set[str]]:
        """By resource."""
        used: dict[str, set[str]] = {}
        for containers in self._held.values():
            for resources in containers.values():
                for resource, holding in resources.items():
                    used.setdefault(resource, set()).update(holding.ids)
        return used

    def save(self, resources: Iterable[str]) -> None:
        """resources: those that plugins have registered."""
        made = self._file.with_name(f"{self._file.name}.new")
        made.write_bytes(msgspec.json.encode(_Checkpoint(self._held, sorted(resources))))
        made.rename(self._file)

    def load(self) -> set[str]:
        """Reads the file; the resources that had been registered. Without it, or where it cannot be
        read, a kubelet goes on and has forgotten who holds what [Start, readCheckpoint]."""
        try:
            read = msgspec.json.decode(self._file.read_bytes(), type=_Checkpoint)
        except (FileNotFoundError, msgspec.MsgspecError):
            return set()
        self._held = read.held
        return set(read.resources)


def merged(holdings: dict[str, ContainerHolding], order: Order) -> Answer:
    """What a container gets for all that it holds; of two that say differently the first wins, in
    kubelet's any order.

    Source: deviceRunContainerOptions in kubelet's pod_devices.go.
    """
    answer = Answer()
    for resource in order(holdings):
        later = holdings[resource].answer
        answer = Answer(
            environment={**later.environment, **answer.environment},
            mounts=(
                *answer.mounts,
                *(mount for mount in later.mounts if mount.inside not in _insides(answer.mounts)),
            ),
            devices=(
                *answer.devices,
                *(node for node in later.devices if node.inside not in _insides(answer.devices)),
            ),
            annotations={**later.annotations, **answer.annotations},
            cdi=(*answer.cdi, *(name for name in later.cdi if name not in answer.cdi)),
        )
    return answer


def _insides(places: Iterable[HostMount | DeviceNode]) -> set[str]:
    return {place.inside for place in places}


CHECKPOINT = "kubelet_internal_checkpoint"
KUBELET_SOCKET = "kubelet.sock"


class DeviceManager:
    """folder: device-plugins. active: the uids of the pods that have not ended; None while none are
    known."""

    def __init__(
        self,
        folder: Path,
        version: Version,
        active: Callable[[], Collection[str] | None],
        chance: random.Random,
        pace: KubeletPace,
    ) -> None:
        self._folder = folder
        self._version = version
        self._active = active
        self._chance = chance
        self._plugins = PluginTable(version, self._save, pace)
        self._registration = PluginSocket(folder / KUBELET_SOCKET, self._plugins.register)
        self._holdings = DeviceHoldings(folder / CHECKPOINT)
        self._in_use: dict[str, set[str]] = {}
        # by pod, then resource: of its init containers
        self._reusable: dict[str, dict[str, set[str]]] = {}

    async def start(self) -> None:
        """[Start, CleanupPluginDirectory]"""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._plugins.expect(self._holdings.load())
        self._in_use = self._holdings.in_use()
        for left in self._folder.iterdir():
            if left.name != CHECKPOINT and (
                left.is_socket() or (self._version.deletes_files and left.is_file())
            ):
                left.unlink()
        await self._registration.start()

    async def stop(self) -> None:
        await self._registration.stop()
        await self._plugins.stop()

    def amounts(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """The node's capacity, and what of it can be allocated."""
        return self._plugins.amounts()

    def held(self, uid: str, container: str) -> Mapping[str, Sequence[str]]:
        """The ids that a container holds, by resource."""
        return {
            resource: holding.ids for resource, holding in self._holdings.of(uid, container).items()
        }

    def free_ended(self) -> None:
        """[UpdateAllocatedDevices]"""
        active = self._active()
        if active is not None and self._holdings.keep_only(active):
            self._in_use = self._holdings.in_use()

    async def allocate(self, pod: SimPod, container: SimContainer, *, runs: bool) -> None:
        """Gives a container its devices; PluginFailed refuses the pod. [Allocate,
        allocateContainerResources]

        runs: whether the container has been running since before this kubelet started.
        """
        self._reusable = {pod.uid: self._reusable.get(pod.uid, {})}
        if any(self._is_ours(resource) for resource in container.devices):
            self.free_ended()
        for resource in self._any_order(container.devices):
            # another belongs to whatever wrote it into the node's status
            if self._is_ours(resource):
                await self._allocate(pod, container, resource, runs=runs)
        self._settle_reuse(pod, container)
        self._save()

    async def _allocate(
        self, pod: SimPod, container: SimContainer, resource: str, *, runs: bool
    ) -> None:
        held = self._holdings.of(pod.uid, container.name).get(resource)
        if held and (runs or not self._version.checks_held_devices):
            return
        if runs and self._version.checks_held_devices:
            return  # it has what it needs, also of a lost checkpoint [devicesToAllocate]
        self._check_health(resource, held)
        needed = container.devices[resource]
        if held or not needed:
            return
        try:
            ids = await self._choose(pod, resource, needed)
            answer = await self._plugins.endpoint(resource).allocate(self._any_order(ids))
        except PluginFailed:
            self._in_use = self._holdings.in_use()
            raise
        self._holdings.add(
            pod.uid, container.name, resource, ContainerHolding(tuple(self._any_order(ids)), answer)
        )

    def _check_health(self, resource: str, held: ContainerHolding | None) -> None:
        if resource not in self._plugins.resources:
            raise PluginFailed(f"cannot allocate unregistered device {resource}")
        if not self._version.checks_held_devices:
            return
        healthy = self._plugins.healthy(resource)
        if not healthy:
            raise PluginFailed(
                f"no healthy devices present; cannot allocate unhealthy devices {resource}"
            )
        if held and not healthy.issuperset(held.ids):
            words = (
                "previously allocated devices are no longer healthy; cannot allocate unhealthy"
                " devices"
            )
            raise PluginFailed(f"{words} {resource}")

    async def _choose(self, pod: SimPod, resource: str, needed: int) -> set[str]:
        """[devicesToAllocate] Devices of the pod's init containers first, then what the plugin
        prefers, then any."""
        used = self._in_use.setdefault(resource, set())
        chosen = set(self._any_order(self._reusable[pod.uid].get(resource, ()))[:needed])
        if len(chosen) == needed:
            return chosen
        available = self._plugins.healthy(resource) - used
        if len(available) < needed - len(chosen):
            raise PluginFailed(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed - len(chosen)}, Available: {len(available)}"
            )
        preferred = await self._preferred(resource, available | chosen, chosen, needed)
        wanted = [each for each in self._any_order(preferred) if each in available]
        others = self._any_order(available - set(wanted))
        chosen.update([*wanted, *others][: needed - len(chosen)])
        self._in_use.setdefault(resource, set()).update(chosen)
        return chosen

    async def _preferred(
        self, resource: str, available: set[str], chosen: set[str], needed: int
    ) -> set[str]:
        """[callGetPreferredAllocationIfAvailable]"""
        endpoint = self._plugins.endpoint(resource)
        if endpoint.options is None or not endpoint.options.get_preferred_allocation_available:
            return set()
        try:
            return set(
                await endpoint.preferred(
                    self._any_order(available), self._any_order(chosen), needed
                )
            )
        except PluginFailed as error:
            raise PluginFailed(
                f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            ) from None

    def _settle_reuse(self, pod: SimPod, container: SimContainer) -> None:
        """What an init container holds its successors may have; what any other holds it keeps."""
        reusable = self._reusable[pod.uid]
        for resource, ids in self.held(pod.uid, container.name).items():
            if container.role is Role.INIT:
                reusable.setdefault(resource, set()).update(ids)
            else:
                reusable.setdefault(resource, set()).difference_update(ids)

    async def prepare(self, pod: SimPod, container: SimContainer) -> Answer:
        """What a container gets, before each of its starts; PluginFailed holds it back.

        [GetDeviceRunContainerOptions, callPreStartContainerIfNeeded]
        """
        missing = False
        for resource in self._any_order(container.devices):
            if self._is_ours(resource) and container.devices[resource]:
                await self._pre_start(pod, container, resource)
                missing = missing or resource not in self._holdings.of(pod.uid, container.name)
        if missing:
            await self.allocate(pod, container, runs=False)
        return merged(self._holdings.of(pod.uid, container.name), self._any_order)

    async def _pre_start(self, pod: SimPod, container: SimContainer, resource: str) -> None:
        endpoint = self._plugins.endpoint(resource)
        if endpoint.options is None or not endpoint.options.pre_start_required:
            return
        held = self._holdings.of(pod.uid, container.name).get(resource)
        if held is None:
            where = f"pod {pod.uid}, container {container.name}, resource {resource}"
            raise PluginFailed(f"no devices found allocated in local cache for {where}")
        try:
            await endpoint.pre_start(self._any_order(held.ids))
        except PluginFailed as error:
            raise PluginFailed(
                f"device plugin PreStartContainer rpc failed with err: {error}"
            ) from None

    def _is_ours(self, resource: str) -> bool:
        """[isDevicePluginResource]"""
        return resource in self._plugins.resources or resource in self._in_use

    def _any_order(self, things: Iterable[str]) -> list[str]:
        ordered = sorted(things)
        self._chance.shuffle(ordered)
        return ordered

    def _save(self) -> None:
        self._holdings.save(self._plugins.resources)
