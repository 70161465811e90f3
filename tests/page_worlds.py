"""Views for tests of the page, and a source that shows what a test says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from mpsd.model.domain import State
from mpsd.model.grants import Gpu, Grant, evenly
from mpsd.model.identity import PodName
from mpsd.model.node_view import Client, DomainRecord, DomainView, HeldGrant, NodeView
from mpsd.status.page.rules.pages import node_page
from mpsd.status.page.rules.view import PageView
from mpsd.status.rules.node_report import node_report
from tests.model.worlds import GPUS as SOME
from tests.model.worlds import POLICY, identity, record, view

GIB = 1024
# the fields of a view whose entries have ids
LISTS = ("notes", "nodes", "gpus", "waiting", "recent")


def crowd(gpus: int, clients: int, used_mib: int | None = 400) -> NodeView:
    """So many GPUs with so many pods each, every one of half a GiB with one client."""
    found = tuple(
        replace(SOME[0], uuid=f"GPU-{ordinal:032x}", ordinal=ordinal) for ordinal in range(gpus)
    )
    grants = [
        granted(gpu, f"train-{gpu.ordinal}-{number}", 512)
        for gpu in found
        for number in range(clients)
    ]
    return node(found, grants, used_mib)


def node(gpus: tuple[Gpu, ...], grants: list[Grant], used_mib: int | None = 400) -> NodeView:
    """A node on which every grant has one client."""
    clients = tuple(
        Client(identity(1000 + number), grant.gpus[0], used_mib, True, "train", grant.id)
        for number, grant in enumerate(grants)
    )
    domains = tuple(DomainView(domain(gpu), frozenset()) for gpu in gpus)
    held = tuple(HeldGrant(grant, True) for grant in grants)
    return replace(view(grants=held, clients=clients), gpus=gpus, domains=domains)


def domain(gpu: Gpu, state: State = State.READY, reason: str = "") -> DomainRecord:
    return replace(record(state=state, reason=reason), domain=gpu.label, gpus=(gpu.uuid,))


def granted(gpu: Gpu, name: str, mib: int, namespace: str = "default", percent: int = 0) -> Grant:
    pod = PodName(namespace, name, f"uid-of-{name}")
    return Grant(
        f"{namespace}/{name}",
        gpu.label,
        evenly((gpu.uuid,), mib, percent),
        percent or 100,
        1,
        pod,
        "train",
    )


def page_of(seen: NodeView, name: str = "gpu-a1") -> PageView:
    return node_page(node_report(seen, POLICY), name)


class Played:
    """Shows the view that the test has set last."""

    def __init__(self, first: PageView | None) -> None:
        self._next = first
        self.looks = 0
        self.is_open = False

    def show(self, page: PageView) -> None:
        self._next = page

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False

    async def look(self) -> PageView | None:
        self.looks += 1
        shown, self._next = self._next, None
        return shown
