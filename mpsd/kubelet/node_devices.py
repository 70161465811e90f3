"""The devices of this node and who holds them: what both resources of the device plugin go by.

One rule: kubelet names no pod; whom devices are for is guessed here, in one way, and checked before a container starts.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from mpsd.agent.agent import AgentRole
from mpsd.kubelet.ledger import KubeletGrants
from mpsd.kubelet.pod_resources import Kind
from mpsd.kubelet.rules import journal
from mpsd.kubelet.rules.allocation import Asking
from mpsd.kubelet.rules.devices import gpu_of, healthy, memory_devices, percent_devices
from mpsd.kubelet.rules.messages import Device
from mpsd.kubelet.rules.node_pods import expected, memory_units, percents
from mpsd.kubelet.rules.start_checks import Holdings
from mpsd.model.domains import Domain
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.share_request import ContainerRequest
from mpsd.mps.node import Node
from mpsd.platform.newest import Newest
from mpsd.platform.waiting import until

_AMOUNTS: Mapping[Kind, Callable[[ContainerRequest], int]] = {"memory": memory_units, "percent": percents}
_API_LAG_S = 1.0  # kubelet may hear of a pod before we do
_LOOK_AGAIN_S = 0.05


class NodeDevices:
    """memory, percent: every device of each resource, as kubelet is to be told."""

    def __init__(
        self,
        node: Node,
        domains: tuple[Domain, ...],
        agent: AgentRole,
        books: KubeletGrants,
        policy: Callable[[], Policy],
    ) -> None:
        self.node = node
        self.domains = domains
        self.agent = agent
        self.books = books
        self.policy = policy
        self.memory = Newest[tuple[Device, ...]](())
        self.percent = Newest[tuple[Device, ...]](())
        self._listed: tuple[frozenset[str], Policy] | None = None  # what the devices were made from; None before that
        self.one_at_a_time = asyncio.Lock()  # a guess at a pod counts on those before it being written down

    @property
    def domain_of(self) -> dict[str, str]:
        """From UUID to the name of its domain."""
        return {uuid: domain.name for domain in self.domains for uuid in domain.gpus}

    def see(self, view: NodeView) -> None:
        """Brings the devices up to date with this look at the node."""
        policy = self.policy()
        serving = (domain.record for domain in view.domains if healthy(domain.state, domain.record.served))
        good = frozenset(uuid for record in serving for uuid in record.gpus)
        if self._listed == (good, policy):
            return
        self._listed = good, policy
        memory = memory_devices(self.node.gpus, policy)
        self.memory.set(tuple(Device(device, gpu_of(device) in good) for device in memory))
        self.percent.set(tuple(Device(device, bool(good)) for device in percent_devices(self.node.gpus, policy)))

    def holdings(self) -> Holdings:
        """What a start is held against."""
        view, books = self.agent.view, self.books
        records = tuple(domain.record for domain in view.domains) if view else ()
        return Holdings(self.node.gpus, records, books.held_devices, books.entries, books.pods_seen)

    async def whose(self, resource: Kind, count: int, gpus: int | None = None) -> Asking | None:
        """The container that `count` devices are most likely for; None where nobody is known to wait for so many.

        gpus: the number of GPUs they lie on, where that is settled.
        """
        found = self.guess(resource, count, gpus)
        if found is None:
            with suppress(TimeoutError):
                news = partial(self.guess, resource, count, gpus)
                await until(news, _API_LAG_S, "the pod is known", look_again_s=_LOOK_AGAIN_S)
        return found or self.guess(resource, count, gpus)

    def guess(self, resource: Kind, count: int, gpus: int | None = None) -> Asking | None:
        """As `whose`, without waiting for news."""
        books, pods = self.books, self.books.pods_seen
        served = {kind: journal.served(kind, books.held_devices, books.entries, pods) for kind in _AMOUNTS}
        others = frozenset().union(*(containers for kind, containers in served.items() if kind != resource))
        return expected(pods, served[resource], _AMOUNTS[resource], count, gpus=gpus, begun=others)
