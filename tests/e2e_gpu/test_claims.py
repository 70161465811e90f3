"""Parts of a real GPU by resource claims. The file turns the installation into one that serves
claims, and back."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.claims import Claims, claims_instead_of_plugins
from tests.e2e.cluster import Cluster
from tests.e2e.machine import this_machine
from tests.e2e.shares import Pods, assert_fills
from tests.e2e.versions import needs
from tests.e2e.waiting import eventually
from tests.e2e_gpu.installation import CONTEXT_MIB, GpuInstallation


@pytest.fixture(scope="module")
def claims(cluster: Cluster, mpsd: GpuInstallation, pods: Pods) -> Iterator[Claims]:
    needs(cluster, 36, "claims of a part of a device")
    cdi = this_machine().state / "cdi"
    cdi.mkdir(exist_ok=True)
    with claims_instead_of_plugins(mpsd, pods, cdi):
        yield Claims(mpsd, pods, cdi)


@pytest.fixture(autouse=True)
def nothing_left(claims: Claims) -> Iterator[None]:
    yield
    claims.until_nothing_is_left()


def test_two_pods_in_two_namespaces_share_a_gpu_and_each_holds_to_its_claim(
    cluster: Cluster,
    mpsd: GpuInstallation,
    pods: Pods,
    claims: Claims,
    record_property: Callable[[str, object], None],
) -> None:
    first = claims.start("seven", 7, "alloc=9000", threads=30)
    with cluster.namespace() as namespace:
        there = Claims(mpsd, Pods(cluster, namespace, mpsd.image, pods.client), claims.cdi)
        second = there.start("four", 4, "alloc=9000")
        record_property("said", [first, second])
        print(f"\n{json.dumps([first, second])}")
        sms = mpsd.gpus()[0]["sms"]
        for gib, said in (7, first), (4, second):
            assert_fills(said, gib, CONTEXT_MIB)
            assert said[0]["uuid"] == first[0]["uuid"]
        assert 0.2 * sms < first[0]["sms"] <= 0.3 * sms
        assert second[0]["sms"] == sms
        eventually(lambda: mpsd.granted_mib(namespace) == {"four": 4096}, "the grant of the second")
        assert claims.files() == {claims.uid("seven"), there.uid("four")}
        there.end("four")
    claims.end("seven")


def test_a_program_that_takes_more_than_its_claim_is_ended_and_its_pod_hears_why(
    claims: Claims,
) -> None:
    claims.assert_greed_is_ended()


def test_a_fault_taints_the_gpu_and_shows_in_the_status_of_its_pods_until_it_is_healed(
    claims: Claims,
) -> None:
    claims.assert_a_fault_heals()
