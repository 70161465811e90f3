"""What clients of gpushare read of the ledger."""

from mpsd.scheduler.rules.capacity import node_capacity
from mpsd.scheduler.rules.inspect_formats import inspected, inspection
from tests.model.worlds import POLICY
from tests.status.cluster_worlds import GIB, cluster_node, grant, held, reserved, uuid


def test_every_gpu_says_what_it_has_in_whole_units_and_who_has_how_much() -> None:
    ledger = node_capacity(
        cluster_node(held=(held("a", 7, 1),)), "", (), (reserved("b", 3, 1),), POLICY
    )
    assert inspection([inspected(ledger)]) == {
        "nodes": [
            {
                "name": "node1",
                "totalGPU": 46,
                "usedGPU": 10,
                "devs": [
                    {"id": 0, "totalGPU": 23, "usedGPU": 0, "pods": []},
                    {
                        "id": 1,
                        "totalGPU": 23,
                        "usedGPU": 10,
                        "pods": [
                            {"name": "a", "namespace": "default", "usedGPU": 7},
                            {"name": "b", "namespace": "default", "usedGPU": 3},
                        ],
                    },
                ],
            }
        ]
    }


def test_a_pod_of_two_gpus_is_on_both_with_what_it_has_of_each() -> None:
    gpus = (uuid("node1", 0), uuid("node1", 1))
    both = grant("a", 5 * GIB, *gpus)
    ledger = node_capacity(cluster_node(held=(both,)), "", (), (), POLICY)
    node = inspected(ledger)
    assert [device["usedGPU"] for device in node["devs"]] == [5, 5]
    assert node["usedGPU"] == 10


def test_a_node_that_takes_no_pods_shows_what_it_has() -> None:
    ledger = node_capacity(cluster_node(held=None), "", (), (), POLICY)
    node = inspected(ledger)
    assert (node["totalGPU"], node["usedGPU"]) == (46, 0)


def test_why_there_is_nothing_to_see_is_said() -> None:
    assert inspection([], "not heard of yet") == {"nodes": [], "error": "not heard of yet"}
