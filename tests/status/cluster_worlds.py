"""Small clusters for tests of the scheduler: nodes with a few GPUs, and pods that hold or were
reserved some."""

from dataclasses import replace

from hypothesis import strategies as st

from mpsd.kubelet.rules.gpu_choice import SharedPod
from mpsd.model.cluster_status import ClusterNode, ServedGpu
from mpsd.model.domain import State
from mpsd.model.grants import GpuCapacity, GpuName, Request
from mpsd.model.identity import PodName
from mpsd.model.node_report import DomainReport, GrantReport
from mpsd.model.policy import Placement
from mpsd.model.times import utc
from mpsd.scheduler.rules.capacity import NodeCapacity
from mpsd.scheduler.rules.reservations import Reservation
from tests.model.worlds import POLICY

GIB = 1024


def uuid(node: str, ordinal: int) -> str:
    return f"GPU-{node}-{ordinal}"


def cluster_node(
    name: str = "node1",
    gib: tuple[int, ...] = (23, 23),
    *,
    held: tuple[GrantReport, ...] | None = (),
    states: tuple[str | None, ...] = (),
    cordoned: tuple[int, ...] = (),
    together: bool = False,
    on_demand: bool = False,
) -> ClusterNode:
    """A node whose GPUs may promise so many GiB, each in a domain of its own unless `together`.
    on_demand: whether its `mpsd control` joins and divides them."""
    states = states or (State.READY.value,) * len(gib)
    domains = ["gpu0-1" if together else f"gpu{n}" for n in range(len(gib))]
    gpus = tuple(
        ServedGpu(
            node=name,
            uuid=uuid(name, n),
            label=f"gpu{n}",
            model="A30",
            domain=domains[n] if states[n] else "",
            state=states[n],
            cordoned=n in cordoned,
            restarts=0,
            memory_mib=each * GIB + 76,
            promised_mib=each * GIB,
            granted_mib=0,
            granted_percent=0,
            used_mib=0,
            clients=0,
            promised_percent=100,
            promised_clients=48,
        )
        for n, each in enumerate(gib)
    )
    kind = ("joined" if together else "alone") if on_demand else ""
    rows = tuple(
        DomainReport(
            name=domain,
            gpus=tuple(gpu.uuid for gpu in gpus if gpu.domain == domain),
            state="ready",
            since=utc(0.0),
            restarts=0,
            kind=kind,
        )
        for domain in dict.fromkeys(domains)
    )
    return ClusterNode(
        name=name, ready=True, reported_at=0.0, gpus=gpus, domains=rows, pods=held, driver="580"
    )


def held(
    pod: str, gib: int, ordinal: int = 0, node: str = "node1", percent: int = 0
) -> GrantReport:
    """What a node says that kubelet gave a pod."""
    return grant(pod, gib * GIB, uuid(node, ordinal), percent=percent)


def grant(pod: str, memory_mib: int, *gpus: str, percent: int = 0) -> GrantReport:
    return GrantReport(
        pod=f"default/{pod}",
        uid=f"{pod}-uid",
        id=f"{pod}-uid",
        gpus=gpus,
        memory_mib=memory_mib,
        thread_percent=100,
        reserved_percent=percent,
        used_mib=0,
        clients=0,
    )


def reserved(
    pod: str, gib: int, ordinal: int = 0, node: str = "node1", percent: int = 0
) -> Reservation:
    return Reservation(
        PodName("default", pod, f"{pod}-uid"), (uuid(node, ordinal),), gib * GIB, percent
    )


def shared_pod(
    pod: str,
    gib: int,
    node: str = "",
    choice: dict[str, str] | None = None,
    gpus: int = 1,
    **more: object,
) -> SharedPod:
    fields = {
        "name": PodName("default", pod, f"{pod}-uid"),
        "request": Request(gib * GIB, None, gpus),
        "node": node,
        "choice": choice or {},
        "scheduler": "default-scheduler",
        "priority": 0,
        "created": "2026-11-21T08:00:00Z",
        "finished": False,
        "terminating": False,
    }
    return SharedPod(**fields | more)  # type: ignore[arg-type]


@st.composite
def ledger(draw: st.DrawFn, node: str) -> NodeCapacity:
    """Any ledger of a node of up to four GPUs, in one or more domains."""
    rooms = tuple(
        GpuCapacity(
            gpu=GpuName(uuid(node, n), n),
            domain=f"gpu{draw(st.integers(0, 1))}",
            memory_mib_total=24 * GIB,
            memory_mib=draw(st.integers(-1, 24)) * GIB,
            thread_percent=draw(st.integers(-5, 100)),
            clients=draw(st.integers(-8, 48)),
            holders=draw(st.none() | st.integers(0, 1)),
        )
        for n in range(draw(st.integers(0, 4)))
    )
    policy = replace(POLICY, placement=draw(st.sampled_from(Placement)))
    return NodeCapacity(
        node, policy, rooms, (), (), "", tuple((room.gpu, room.memory_mib_total) for room in rooms)
    )


requests = st.builds(
    Request,
    st.integers(1, 24).map(lambda gib: gib * GIB),
    st.none() | st.integers(5, 100),
    st.integers(1, 3),
)
