"""What is told of a grant, whoever holds it."""

from dataclasses import replace

from mpsd.model.grants import GpuShare
from mpsd.model.identity import PodName
from mpsd.model.node_view import Client, HeldGrant
from mpsd.status.rules.node_report import node_report
from tests.model.worlds import POLICY, UUIDS, grant, identity, view


def test_a_grant_of_a_pod_names_the_pod_and_one_of_a_program_its_pid() -> None:
    program = grant("a", 1)
    pod = replace(
        grant("b", 2), holder=PodName("default", "train-0", "a-uid"), command="default/train-0"
    )
    told = node_report(view(grants=(HeldGrant(program, True), HeldGrant(pod, True))), POLICY).grants
    assert [(one.holder_pid, one.pod) for one in told] == [
        (program.holder.pid, ""),  # type: ignore[union-attr]
        (None, "default/train-0"),
    ]


def test_a_grant_of_uneven_parts_is_told_gpu_by_gpu_and_each_gpu_counts_its_own_part() -> None:
    parts = (GpuShare(UUIDS[0], 1024, 10), GpuShare(UUIDS[1], 4096, 50))
    uneven = replace(grant("a", 1), parts=parts, thread_percent=10)
    clients = tuple(
        Client(identity(pid), uuid, mib, True, "train", "a")
        for pid, uuid, mib in ((1, UUIDS[0], 1500), (2, UUIDS[1], 1500))
    )
    told = node_report(view(grants=(HeldGrant(uneven, True),), clients=clients), POLICY)
    assert [(gpu.granted_mib, gpu.granted_percent) for gpu in told.gpus] == [(1024, 10), (4096, 50)]
    assert [(card.memory_mib, card.used_mib, card.over) for card in told.grants[0].cards] == [
        (1024, 1500, True),
        (4096, 1500, False),
    ]
    assert (told.grants[0].memory_mib, told.grants[0].over) == (4096, True)
