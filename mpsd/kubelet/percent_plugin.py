"""The device plugin of the percent resource: its devices count a container's share of a GPU's threads.

One rule: a percent names no GPU; that the sum on each GPU holds is seen to where the memory's container starts.
"""

import time
from collections.abc import AsyncIterator, Sequence

from mpsd.kubelet.node_devices import NodeDevices
from mpsd.kubelet.rules.allocation import Held, allocate_percent
from mpsd.kubelet.rules.device_answer import percent_answer
from mpsd.kubelet.rules.devices import number_of
from mpsd.kubelet.rules.messages import Answer, Device
from mpsd.platform import processes


class PercentPlugin:
    """Every percent is like every other."""

    def __init__(self, devices: NodeDevices) -> None:
        self._node = devices

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        return self._node.percent.follow()

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        free = sorted(set(available).difference(must_include), key=number_of)
        return [*must_include, *free][:size]

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """InvalidInput where so many are no share of a GPU."""
        async with self._node.one_at_a_time:
            asking = await self._node.whose("percent", len(ids))
            percent = allocate_percent(ids, asking, self._node.policy())
            container, uid = (asking[0].container(asking[1]), asking[0].uid) if asking else (None, "")
            self._node.books.note(
                Held("percent", tuple(ids), container, percent, processes.boot_id(), time.time(), uid)
            )
        return percent_answer(percent)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Nothing waits for percents."""
