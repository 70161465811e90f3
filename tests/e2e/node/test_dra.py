"""Pods that get their part of a GPU by resource claims: real scheduler, kubelet and containerd,
simulated GPUs.

The file turns the installation into one that serves claims, and back.
"""

import json
from collections.abc import Iterator
from itertools import count
from random import Random

import pytest

from tests.e2e.claims import (
    Claims,
    claims_for_requests,
    claims_instead_of_plugins,
    devices,
    most_of_one_gpu,
    pod_with,
    policy_with,
    slices,
)
from tests.e2e.cluster import Cluster
from tests.e2e.installation import AGENT, GPUS, MEMORY, UNITS, Installation
from tests.e2e.machine import Machine, this_machine
from tests.e2e.shares import Pods, assert_fills, sample
from tests.e2e.versions import needs
from tests.e2e.waiting import eventually

_RANDOM = 40  # claims


def _uuids(cluster: Cluster) -> list[str]:
    return [device["attributes"]["uuid"]["string"] for device in devices(cluster)]


def _cordon(claims: Claims, *gpus: str) -> None:
    spec = json.dumps({"spec": {"cordoned": list(gpus)}})
    claims.mpsd.cluster.do("patch", "mpsnode", claims.mpsd.node, "--type=merge", "-p", spec)


@pytest.fixture(scope="module")
def claims(cluster: Cluster, mpsd: Installation, pods: Pods) -> Iterator[Claims]:
    needs(cluster, 36, "claims of a part of a device")
    cdi = this_machine().state / "cdi"
    with claims_instead_of_plugins(mpsd, pods, cdi):
        yield Claims(mpsd, pods, cdi)


@pytest.fixture(autouse=True)
def nothing_left(claims: Claims) -> Iterator[None]:
    yield
    claims.until_nothing_is_left()


def test_two_pods_in_two_namespaces_share_a_gpu_and_each_holds_to_its_claim(
    cluster: Cluster, mpsd: Installation, pods: Pods, claims: Claims
) -> None:
    first = claims.start("seven", 7, "alloc=9000", threads=30)
    assert_fills(first, 7)
    inside = pods.environment("seven")
    assert inside["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=7168M"
    assert inside["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert inside["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mpsd/client"
    assert inside["NVIDIA_VISIBLE_DEVICES"] == first[0]["uuid"]
    with cluster.namespace() as namespace:
        there = Claims(mpsd, Pods(cluster, namespace, mpsd.image), claims.cdi)
        second = there.start("four", 4, "alloc=9000")
        assert_fills(second, 4)
        assert second[0]["uuid"] == first[0]["uuid"]
        eventually(lambda: mpsd.granted_mib(namespace) == {"four": 4096}, "the grant of the second")
        assert mpsd.granted_mib(pods.namespace) == {"seven": 7168}
        assert claims.files() == {claims.uid("seven"), there.uid("four")}
        there.end("four")
    claims.end("seven")


def test_the_published_sample_runs_unchanged_by_a_claim(
    cluster: Cluster, pods: Pods, claims: Claims
) -> None:
    with claims_for_requests(cluster, pods):
        name = sample(pods)
        assert MEMORY not in json.dumps(pods.get(name)["spec"])
        said = pods.wait_until_holding(name, "mps-sample")
        assert_fills(said, 7)
        assert pods.environment(name, "mps-sample")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=7168M"
        eventually(lambda: [grant["memoryMiB"] for grant in claims.grants()] == [7168], "its grant")
        (template,) = cluster.get("resourceclaimtemplates", "-n", pods.namespace)["items"]
        assert template["metadata"]["labels"]["app.kubernetes.io/name"] == "mpsd-webhook"
        cluster.do("delete", "job", "-n", pods.namespace, "--all")
        eventually(
            lambda: not cluster.get("resourceclaims", "-n", pods.namespace)["items"],
            "its claim gone with it",
        )


def test_a_claim_that_fits_nowhere_waits_and_gets_what_is_given_back(
    pods: Pods, claims: Claims
) -> None:
    for name in ("first", "second"):
        claims.start(name, 20)
    claims.create("third", 20)
    pods.create(pod_with(pods, "third", "third", "hold"))
    assert pods.event("third", "FailedScheduling")
    assert pods.phase("third") == "Pending"
    claims.end("first")
    pods.wait_until_holding("third")
    claims.end("second", "third")


def test_a_program_that_takes_more_than_its_claim_is_ended_and_its_pod_hears_why(
    claims: Claims,
) -> None:
    claims.assert_greed_is_ended()


def test_pods_that_share_a_claim_hold_one_grant_together(pods: Pods, claims: Claims) -> None:
    claims.create("ours", 6)
    for name in ("left", "right"):
        pods.create(pod_with(pods, name, "ours", "alloc=2000", "hold"))
    for name in ("left", "right"):
        pods.wait_until_holding(name)
    eventually(lambda: [grant["memoryMiB"] for grant in claims.grants()] == [6144], "one grant")
    assert claims.files() == {claims.uid("ours")}
    pods.delete("left")
    pods.until_gone("left")
    assert [grant["memoryMiB"] for grant in claims.grants()] == [6144]
    claims.end("right", "ours")


def test_a_cordoned_gpu_is_tainted_until_it_is_not(cluster: Cluster, claims: Claims) -> None:
    def taints() -> list[str]:
        return [taint["value"] for device in devices(cluster) for taint in device.get("taints", ())]

    first, second = _uuids(cluster)
    assert claims.start("before", UNITS)[0]["uuid"] == first
    _cordon(claims, first)
    eventually(lambda: taints() == ["draining"], "the GPU is tainted")
    assert {health for _device, health in claims.health("before")} == {"Healthy"}, (
        "a cordon is no sickness"
    )
    claims.end("before")
    eventually(lambda: taints() == ["drained"], "it is empty")
    assert claims.start("beside", UNITS)[0]["uuid"] == second
    _cordon(claims)
    eventually(lambda: not taints(), "the taint is gone")
    claims.end("beside")


def test_pods_are_deleted_from_a_gpu_in_a_state_that_the_policy_names(
    cluster: Cluster, pods: Pods, claims: Claims
) -> None:
    first, _second = _uuids(cluster)
    words = ("evict_claims_when: []", "evict_claims_when: [draining]")
    with policy_with(
        cluster, *words, f"daemonset/{AGENT}", lambda _new: claims.mpsd.is_ready("agent")
    ):
        assert claims.start("evicted", UNITS)[0]["uuid"] == first
        claims.start("beside", UNITS)
        _cordon(claims, first)
        try:
            pods.until_gone("evicted")
            assert pods.phase("beside") == "Running"
        finally:
            _cordon(claims)
        claims.end("evicted", "beside")


@pytest.mark.timeout(600)
def test_a_label_moves_the_node_from_claims_to_the_device_plugins_and_back(
    cluster: Cluster, mpsd: Installation, pods: Pods, claims: Claims
) -> None:
    def label(word: str) -> None:
        cluster.do("label", "node", mpsd.node, word)

    def is_by_plugins(new: bool) -> bool:
        return mpsd.is_ready("agent") and bool(devices(cluster)) is not new

    words = ("claim_nodes: all", "claim_nodes: labelled")
    with policy_with(cluster, *words, f"daemonset/{AGENT}", is_by_plugins):
        mpsd.wait_until_offered()
        pods.start("first", 4)
        label("mpsd.io/claims=true")
        try:
            pods.start("second", 2)  # which is served as long as the node is not empty
            assert not devices(cluster)
            for name in ("first", "second"):
                pods.delete(name)
            eventually(
                lambda: len(devices(cluster)) == GPUS,
                "the GPUs are offered to claims",
                within_s=60.0,
            )
            claims.start("third", 4)
        finally:
            label("mpsd.io/claims-")
        claims.start("fourth", 2)
        claims.end("third", "fourth")
        mpsd.wait_until_offered()
        eventually(lambda: not devices(cluster), "no GPU is offered to claims")


def test_a_claim_outlives_kubelet_and_agent(
    cluster: Cluster, pods: Pods, claims: Claims, machine: Machine
) -> None:
    claims.start("witness", 5, "alloc=2000", restartPolicy="Always")
    before, files = claims.uid("witness"), claims.files()
    assert files == {before}
    claims.mpsd.wait_for_another_agent(claims.mpsd.kill_agent())
    claims.start("after-agent", 2)
    machine.kubelet("kill")
    machine.kubelet("start")
    claims.start("after-kubelet", 2)
    status = pods.status("witness")
    assert "running" in status["state"], pods.why("witness")
    assert status["restartCount"] == 0
    eventually(
        lambda: (
            claims.mpsd.granted_mib(pods.namespace)
            == {
                "witness": 5120,
                "after-agent": 2048,
                "after-kubelet": 2048,
            }
        ),
        "the grants of all",
    )
    assert files < claims.files()
    claims.end("witness", "after-agent", "after-kubelet")
    eventually(lambda: len(devices(cluster)) == GPUS, "one slice with every GPU", within_s=60.0)


@pytest.mark.timeout(600)
def test_random_claims_with_kubelet_agent_and_api_server_killed_in_between_leave_nothing(
    cluster: Cluster, pods: Pods, claims: Claims, machine: Machine
) -> None:
    random, living, ended, made = Random(0), set[str](), set[str](), 0
    for step in count():
        names = [f"random-{step}-{number}" for number in range(random.randint(1, 4))]
        for name in names:
            claims.create(name, random.randint(1, 4), 5 * random.randint(0, 2))
            pods.create(pod_with(pods, name, name, "hold"))
        match step % 6:
            case 1:
                machine.kubelet("kill")
                machine.kubelet("start")
            case 3:
                eventually(claims.mpsd.kill_agent, "an agent to kill")
            case 5:
                machine.api("kill")
                machine.kubelet("kill")
                machine.kubelet("start")
                machine.api("start")
            case _:
                pass
        living.update(names)
        made += len(names)
        if len(living) > 8 and made < _RANDOM:
            ending = random.sample(sorted(living), 5)
            pods.delete(*ending)  # kubelet takes ten seconds over it, in which more comes
            living.difference_update(ending)
            ended.update(ending)
        for held in (claims.journal(), claims.allocated()):
            assert most_of_one_gpu(held) <= UNITS * 1024, held
        if made >= _RANDOM:
            break
    # kubelet waits up to two minutes between two tries of a socket that did not answer
    for name in sorted(living):
        pods.wait_until_holding(name, within_s=180.0)
    claims.end(*ended)
    uids = {claims.uid(name) for name in living}
    eventually(lambda: claims.files() == uids, "a file for each claim")
    eventually(
        lambda: claims.journal() == claims.allocated(),
        "the journal has what the scheduler allocated",
    )
    assert claims.journal().keys() == uids
    eventually(lambda: len(claims.grants()) == len(living), "a grant for each claim")
    claims.end(*living)
    eventually(lambda: not claims.journal(), "nothing of them in the journal", within_s=60.0)
    eventually(lambda: len(slices(cluster)) == 1, "one slice, as before")


def test_a_fault_taints_the_gpu_and_shows_in_the_status_of_its_pods_until_it_is_healed(
    claims: Claims,
) -> None:
    claims.assert_a_fault_heals()
