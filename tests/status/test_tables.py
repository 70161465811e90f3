"""The tables of a status: who holds a grant, by the name that people know it by."""

import io
from dataclasses import replace

from msgspec.structs import replace as changed
from rich.console import Console

from mpsd.model.cluster_status import placed
from mpsd.model.events import PastEvent
from mpsd.model.grants import GpuShare, evenly
from mpsd.model.node_view import Client, Fault, HeldGrant, NodeView
from mpsd.status.machine import show
from mpsd.status.rules.node_report import node_report
from mpsd.status.tables import POD_COLUMNS, clock, table
from tests.model.worlds import NOW, POLICY, UUIDS, blind, grant, identity
from tests.status.pod_worlds import client, held, held_claim, node, pod


def shown(view: NodeView, *ends: PastEvent) -> str:
    text = io.StringIO()
    status = changed(node_report(view, POLICY), daemon_ends=ends)
    show(status, Console(file=text, width=180, markup=False, highlight=False))
    return text.getvalue()


def words(text: str, first: str) -> str:
    (found,) = (line.split() for line in text.splitlines() if line.split()[:1] == [first])
    return " ".join(found)


def test_a_pods_grant_is_shown_by_its_name_and_a_programs_by_its_pid() -> None:
    pods = shown(node(grants=(held("a"),), clients=(client("a", 1, 1024),)))
    assert words(pods, "POD") == "POD GPU GRANTED THREADS USED CLIENTS"
    assert words(pods, "default/a") == "default/a gpu0 7 GiB 100 % 1 GiB 1"
    program = HeldGrant(grant("local", 3), holder_alive=True)
    programs = shown(node(grants=(program,)))
    heads = "GRANT GPU GRANTED THREADS USED CLIENTS PID COMMAND"
    assert words(programs, "GRANT") == heads
    assert words(programs, "local").endswith(" train")


def test_who_lost_processes_when_a_daemon_ended_is_shown_for_a_day() -> None:
    old, late = (
        PastEvent(NOW - ago, "MPSDaemonDown", "", f"pid {ago} lost it") for ago in (90_000, 60)
    )
    said = shown(node(), old, late)
    assert f"MPSDaemonDown at {clock(NOW - 60)} (60 s ago): pid 60 lost it" in said
    assert "pid 90000" not in said


def test_a_program_that_has_no_cgroup_of_its_own_says_so() -> None:
    for cgroup, told in ((None, False), ("/mpsd-local", False), ("", True)):
        shows = shown(
            node(grants=(HeldGrant(grant("local", 3), holder_alive=True, cgroup=cgroup),))
        )
        assert ("(no cgroup) train" in shows) is told


def test_what_outlives_its_holder_says_so() -> None:
    over = node(grants=(replace(held("a"), holder_alive=False),))
    assert "(ended, programs of it are left) default/a" in shown(over)
    assert "(ended, programs of it may be left) default/a" in shown(blind(over))


def test_a_fault_of_the_day_before_is_not_shown() -> None:
    assert "had" not in shown(node(faults=(Fault(NOW - 86400, ()),), faults_total=1))
    assert "had a fault" in shown(node(faults=(Fault(NOW - 86399, ()),), faults_total=1))


def test_a_grant_of_uneven_parts_shows_what_it_has_and_uses_of_each_gpu() -> None:
    parts = tuple(GpuShare(uuid, gib * 1024, 0) for uuid, gib in zip(UUIDS, (3, 5), strict=True))
    uneven = HeldGrant(replace(grant("uneven", 3), parts=parts), holder_alive=True)
    using = tuple(
        Client(identity(pid), uuid, mib, True, "train", "uneven")
        for pid, uuid, mib in ((1, UUIDS[0], 512), (2, UUIDS[1], 4096))
    )
    row = words(shown(node(grants=(uneven,), clients=using)), "uneven")
    assert row.startswith("uneven gpu0,gpu1 3,5 GiB 100 % 0.5,4 GiB 2")
    unknown = (using[0], replace(using[1], used_mib=None))
    assert "0.5,? GiB" in words(shown(node(grants=(uneven,), clients=unknown)), "uneven")

    even = HeldGrant(replace(grant("even", 3), parts=evenly(UUIDS, 3072, 0)), holder_alive=True)
    assert words(shown(node(grants=(even,))), "even").startswith("even gpu0,gpu1 3 GiB")


def test_a_claim_is_named_beside_its_first_pod_and_with_how_many_more_share_it() -> None:
    shared = held_claim("share", pod("a"), pod("b"), pod("c"))
    told = shown(node(grants=(shared, held("d", 2))))
    assert words(told, "POD").startswith("POD CLAIM GPU")
    assert words(told, "default/a").startswith("default/a and 2 more default/share gpu0")
    assert words(told, "default/d").startswith("default/d gpu0")
    wide = _wide(shared)
    assert "SHARED WITH" in wide
    assert "default/b, default/c" in wide
    assert "CLAIM" not in shown(node(grants=(held("d", 2),)))


def _wide(*grants: HeldGrant) -> str:
    text = io.StringIO()
    report = node_report(node(grants=grants), POLICY)
    rows = placed(report.grants or (), report)
    Console(file=text, width=250).print(table(POD_COLUMNS, rows, wide=True))
    return text.getvalue()


def test_a_priority_is_shown_where_a_grant_is_below_normal() -> None:
    below = held("a")
    below = replace(below, grant=replace(below.grant, priority=1))
    assert "PRIORITY" not in shown(node(grants=(held("b"),)))
    told = shown(node(grants=(below, held("b", 2, 1))))
    assert "PRIORITY" in words(told, "POD")
    assert words(told, "default/a").endswith(" below normal")
    assert "below" not in words(told, "default/b")
