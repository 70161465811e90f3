"""What is told of who uses what: what is not known is never told as nothing."""

from dataclasses import replace

from mpsd.model.grants import GpuShare, evenly
from mpsd.model.identity import HostContainer
from mpsd.model.node_view import Client, HeldGrant
from mpsd.model.policy import CardCompute, Compute
from mpsd.status.rules.top import node_top
from mpsd.status.rules.use import Busy, use_report
from tests.model.worlds import GPUS, LOST, POLICY, UUIDS, blind, grant, identity, view


def client(pid: int, of: str, used_mib: int | None = 100, gpu: int = 0) -> Client:
    return Client(identity(pid), UUIDS[gpu], used_mib, True, "train", of)


def test_where_nvml_says_nothing_of_a_gpu_nobody_there_is_idle_and_the_reason_is_told() -> None:
    held = (HeldGrant(grant("a", 4), True),)
    told = use_report(
        view(grants=held, clients=(client(1, "a"),)), POLICY, {}, ["how busy gpu0 is: NVML: lost"]
    )
    assert told.grants[0].cards[0].sm_percent is None
    assert told.unknown == ("how busy gpu0 is: NVML: lost",)


def test_what_uses_a_gpu_that_cannot_be_seen_is_unknown_of_that_gpu_alone() -> None:
    of_two = replace(grant("ab", 4), parts=evenly(UUIDS, 4096, 0))
    held = tuple([HeldGrant(one, True) for one in (grant("a", 4), grant("b", 4, 1), of_two)])
    clients = (client(1, "a"), client(2, "b", gpu=1), client(3, "ab"), client(3, "ab", gpu=1))
    told = use_report(blind(view(grants=held, clients=clients), UUIDS[1]), POLICY, {})
    first, second = told.gpus
    assert (first.used_mib, first.clients, first.unexplained_mib, first.unseen) == (200, 2, 0, "")
    assert (second.used_mib, second.clients, second.unexplained_mib) == (None, None, None)
    assert second.unseen == LOST
    assert {one.gpu for one in told.clients or ()} == {UUIDS[0]}
    assert told.unknown == (f"which processes use gpu1: {LOST}",)
    uses = {one.id: (one.used_mib, one.clients) for one in told.grants or ()}
    assert uses == {"a": (100, 1), "b": (None, None), "ab": (None, None)}
    assert [card.used_mib for one in told.grants or () for card in one.cards] == [
        *(100, None, 100, None)
    ]
    assert [one.clients for one in node_top(told).users] == [1, None, 1, None]


def test_how_busy_a_gpu_is_is_told_whoever_computes_there() -> None:
    clients = (client(1, "a"), client(2, "b"))
    held = (HeldGrant(grant("a", 4), True), HeldGrant(grant("b", 4), True))
    told = use_report(view(grants=held, clients=clients), POLICY, {UUIDS[0]: Busy(98, {500: 97})})
    assert [gpu.sm_percent for gpu in told.gpus] == [98, None]
    assert [card.sm_percent for one in told.grants for card in one.cards] == [None, None]


def test_a_container_has_a_row_on_each_of_its_gpus_with_its_weight() -> None:
    parts = (GpuShare(UUIDS[0], 3000, 25, weight=5), GpuShare(UUIDS[1], 1000, 0))
    holder = HostContainer("/run/runc", "c" * 64, "train", identity(7), is_made=True)
    of_two = replace(grant("a", 4), parts=parts, holder=holder)
    (told,) = use_report(view(grants=(HeldGrant(of_two, True),)), POLICY, {}).grants
    assert (told.container, told.container_name) == ("c" * 64, "train")
    assert [(card.gpu, card.memory_mib, card.weight) for card in told.cards] == [
        (UUIDS[0], 3000, 5),
        (UUIDS[1], 1000, None),
    ]


def test_what_is_free_is_what_a_new_container_could_be_granted() -> None:
    divided = Compute(policy=5, max_inst=None, cards={"0": CardCompute(policy=3, max_inst=20)})
    policy = replace(POLICY, compute=divided)
    held = replace(grant("a", 4), parts=(GpuShare(UUIDS[0], 4096, 25, weight=5),))
    first, second = use_report(view(grants=(HeldGrant(held, True),)), policy, {}).gpus
    assert (first.compute_policy, first.max_inst, first.free_weight) == (3, 20, 15)
    assert (first.free_percent, second.free_percent) == (75, 100)
    assert second.free_mib is not None
    assert first.free_mib == second.free_mib - 4096
    assert (second.max_inst, second.free_weight) == (None, None)


def test_nothing_is_free_for_sure_while_the_grants_are_not_all_known() -> None:
    blind = replace(view(), grants_known=False)
    for gpu in use_report(blind, POLICY, {}).gpus:
        assert (gpu.free_mib, gpu.free_percent, gpu.free_weight) == (None, None, None)
    assert len(use_report(blind, POLICY, {}).gpus) == len(GPUS)
