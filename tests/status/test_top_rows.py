"""What `top` shows: over the limit first, unknown after known and never as nothing."""

import os
from dataclasses import replace
from itertools import permutations, product

import pytest

from mpsd.model.grants import evenly
from mpsd.model.mpsnode import cluster_status
from mpsd.model.node_view import Client, HeldGrant
from mpsd.status.rules.mpsnode import mpsnode_status
from mpsd.status.rules.node_report import node_report
from mpsd.status.rules.top import NO_SM_USE, Sort, Top, TopUser, cluster_top, node_top
from mpsd.status.rules.use import Busy, use_report
from mpsd.status.top_show import View, lines
from tests.model.worlds import POLICY, UUIDS, blind, grant, identity, view
from tests.mpsnodes import NAMES, NOW, mpsnode
from tests.status.pod_worlds import held, held_claim, node, pod

AMOUNTS = (None, 0, 5, 9)
ORDERS = tuple(Sort)


def user(used_mib: int | None, sm_percent: int | None, name: str, *, over: bool) -> TopUser:
    return TopUser(used_mib=used_mib, sm_percent=sm_percent, name=name, over=over)


@pytest.mark.parametrize("by", ORDERS)
def test_in_every_order_of_every_three_users_who_is_over_comes_first_and_unknown_last(
    by: Sort,
) -> None:
    kinds = [(used, sm, over) for used, sm, over in product(AMOUNTS, (None, 0, 50), (False, True))]
    for three in list(permutations(kinds, 3))[::7]:
        users = tuple(
            user(used, sm, f"{number}", over=over) for number, (used, sm, over) in enumerate(three)
        )
        shown = Top(0.0, (), users, ()).ordered(by).users
        assert sorted(shown, key=lambda one: one.name) == list(users), "nobody is lost"
        assert [one.over for one in shown] == sorted((one.over for one in users), reverse=True)
        for group in (True, False):
            amounts = [
                {Sort.MEMORY: one.used_mib, Sort.SM: one.sm_percent, Sort.NAME: 0}[by]
                for one in shown
                if one.over is group
            ]
            known = [amount for amount in amounts if amount is not None]
            assert known == sorted(known, reverse=True)
            assert amounts == known + [None] * (len(amounts) - len(known))


def test_by_name_rows_stay_where_they_are_whatever_they_use() -> None:
    users = (user(1, 1, "b", over=False), user(9, 9, "c", over=False), user(5, 5, "a", over=False))
    assert [one.name for one in Top(0.0, (), users, ()).ordered(Sort.NAME).users] == ["a", "b", "c"]


# -- one machine


def seen(used_mib: int | None, *, on_mps: bool = True, of: str | None = "a") -> Client:
    return Client(identity(7), UUIDS[0], used_mib, on_mps, "train", of)


def top_of(*clients: Client, busy: bool = True) -> Top:
    world = view(grants=(HeldGrant(grant("a", 4), True),), clients=clients)
    return node_top(use_report(world, POLICY, {UUIDS[0]: Busy(30, {7: 30})} if busy else {}))


@pytest.mark.parametrize("used_mib", [None, 0, 100, 5000])
@pytest.mark.parametrize("busy", [True, False])
def test_of_every_machine_what_is_not_known_is_none(used_mib: int | None, busy: bool) -> None:
    top = top_of(seen(used_mib), busy=busy)
    (one,) = top.users
    sm_percent = 30 if busy else None
    assert (one.used_mib, one.sm_percent, one.clients) == (used_mib, sm_percent, 1)
    assert one.over is (used_mib == 5000)
    assert (top.gpus[0].used_mib, top.gpus[0].sm_percent) == (used_mib, sm_percent)


def test_where_the_clients_are_not_known_nobody_has_none() -> None:
    world = view(grants=(HeldGrant(grant("a", 4), True),))
    top = node_top(node_report(blind(world), POLICY))
    assert [(one.used_mib, one.clients) for one in top.users] == [(None, None)]
    assert top.gpus[0].clients is None


@pytest.mark.parametrize(("on_mps", "words"), [(True, "without a grant"), (False, "beside MPS")])
def test_a_process_that_the_ledger_does_not_know_is_a_row_of_its_own_and_over(
    on_mps: bool, words: str
) -> None:
    top = top_of(seen(300, on_mps=on_mps, of=None)).ordered(Sort.NAME)
    foreign, holder = top.users
    assert (foreign.grant, foreign.used_mib, foreign.over) == (None, 300, True)
    assert words in foreign.name
    assert (holder.used_mib, holder.over) == (0, False)


def test_a_grant_of_several_gpus_has_a_row_on_each() -> None:
    of_two = replace(grant("a", 4), parts=evenly(UUIDS[:2], 8192, 0))
    world = view(grants=(HeldGrant(of_two, True),), clients=())
    assert [one.label for one in node_top(node_report(world, POLICY)).users] == ["gpu0", "gpu1"]


# -- a cluster


def test_a_cluster_tells_all_but_how_busy_the_sms_are_and_says_so() -> None:
    top = cluster_top(cluster_status([mpsnode(name) for name in NAMES], NOW), None)
    assert {row.sm_percent for row in (*top.gpus, *top.users)} == {None}
    assert top.notes[0] == NO_SM_USE
    assert any(note.startswith("gpu-b1: silent for 10 min or longer") for note in top.notes)
    assert "gpu-b2: nothing reported yet" in top.notes
    assert {gpu.state for gpu in top.gpus if gpu.node == "gpu-b1"} == {"silent"}
    assert ("gpu-a1", "default/mps-sample-7xk2p", 4608) in {
        (one.node, one.name, one.used_mib) for one in top.users
    }


def test_a_namespace_shows_its_pods_only() -> None:
    status = cluster_status([mpsnode(name) for name in NAMES], NOW)
    assert cluster_top(status, "default").users
    assert cluster_top(status, "defaul").users == ()
    assert len(cluster_top(status, "defaul").gpus) == len(cluster_top(status, None).gpus)


def test_a_pod_is_over_only_where_both_amounts_are_known() -> None:
    for used, granted in product((None, 0, 10), (None, 0, 10)):
        thing = {
            "metadata": {"name": "a"},
            "status": {
                "reportedAt": "2026-11-21T08:30:00Z",
                "grants": [{"pod": "x/y", "usedMiB": used, "memoryMiB": granted}],
            },
        }
        (one,) = cluster_top(cluster_status([thing], NOW), None).users
        assert one.over is (used == 10 and granted == 0)


def test_a_claim_is_named_with_all_its_pods_on_the_machine_and_in_the_cluster() -> None:
    shared = held_claim("share", pod("a"), pod("b"))
    world = node(grants=(shared, held("c", 2)))
    of_cluster = cluster_status(
        [{"metadata": {"name": "n"}, "status": mpsnode_status(node_report(world, POLICY), {})}], NOW
    )
    for top in (node_top(node_report(world, POLICY)), cluster_top(of_cluster, "default")):
        named = {one.name: (one.grant.claim, one.grant.names) for one in top.users if one.grant}
        assert named == {
            "default/a": ("default/share", ("default/a", "default/b")),
            "default/c": ("", ("default/c",)),
        }
    drawn = "\n".join(lines(top, View("top", Sort.NAME), os.terminal_size((120, 30))))
    assert "default/a and 1 more" in drawn
    assert "CLAIM" in drawn
