"""A claim gets what the scheduler allocated for it, or is refused with every reason."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.dra.rules.cdi import file_of, name_of, owner_of, spec_of, started_with
from mpsd.kubelet.dra.rules.claims import (
    ClaimGrant,
    ClaimNode,
    claim_holders,
    other_claim_of,
    read_claim,
    refreshed,
    taken_up,
    why_no_room,
    with_priority,
)
from mpsd.kubelet.dra.rules.config import config_problems
from mpsd.kubelet.rules.allocation import Answer
from mpsd.kubelet.rules.node_pods import NodePod
from mpsd.model.grants import DeviceNode, Grant, HostMount, evenly, promised_mib
from mpsd.model.identity import PodName
from mpsd.model.pod import PodPriority
from mpsd.model.policy import GpuPriority
from mpsd.model.problem import InvalidInput
from tests.kubelet.dra.claims import (
    APART,
    DRIVER,
    TOGETHER,
    UID,
    Object,
    claim_object,
    config,
    parameters,
    prepared,
    result,
)
from tests.model.worlds import GPUS, POLICY, UUIDS, grant

POD = PodName("default", "share-0", "uid-of-share-0")


def refused(thing: Object, node: ClaimNode = APART, uid: str = UID) -> set[str]:
    """The rules by which the claim is refused."""
    with pytest.raises(InvalidInput) as refusal:
        read_claim(thing, uid, node, POLICY, 1.0)
    assert refusal.value.subject == "ResourceClaim default/share"
    assert all(problem.remedy for problem in refusal.value.problems)
    return {problem.rule for problem in refusal.value.problems}


def test_a_claim_s_grant_is_what_it_consumes_of_the_gpu() -> None:
    claim = prepared(result(memory="7Gi", threads="30", clients="3"))
    assert claim.grant(claim.pods) == ClaimGrant(
        id=UID,
        domain="gpu0",
        parts=evenly(UUIDS[:1], 7 * 1024, 30),
        thread_percent=30,
        clients=3,
        holder=POD,
        command="claim default/share",
        sharing=(POD,),
        claim="default/share",
    )


def test_a_claim_that_reserves_no_threads_may_use_as_many_as_the_policy_says() -> None:
    assert prepared(result(threads="0")).thread_percent == POLICY.requests.default_thread_percent


@pytest.mark.parametrize(
    ("threads", "cap", "percent"), [("30", 60, 60), ("0", 50, 50), ("30", 30, 30)]
)
def test_parameters_raise_the_cap_above_the_reserved(threads: str, cap: int, percent: int) -> None:
    claim = prepared(result(threads=threads), configs=(config(parameters(threadCap=cap)),))
    assert (claim.thread_percent, claim.reserved_percent) == (percent, int(threads))


@pytest.mark.parametrize(
    ("field", "remedy"), [("clients", "capacity.requests"), ("speed", "threadCap")]
)
def test_what_is_no_parameter_is_said_where_it_belongs(field: str, remedy: str) -> None:
    (problem,) = config_problems(parameters(**{field: 4}), "parameters", POLICY)
    assert (problem.rule, problem.where) == ("field-unknown", f"parameters.{field}")
    assert remedy in problem.remedy


def test_what_other_drivers_allocated_and_were_told_is_passed_over() -> None:
    others = (
        result(driver="nic.example.com", consumedCapacity=None),
        result(pool="node2", device="gone"),
    )
    claim = prepared(
        *others,
        result(memory="2Gi"),
        configs=(config({"kind": "NicConfig"}, driver="nic.example.com"),),
    )
    assert (claim.memory_mib, claim.gpus) == (2048, UUIDS[:1])


def test_gpus_of_one_domain_are_one_grant_in_the_domain_s_order() -> None:
    claim = prepared(result(1), result(0), node=TOGETHER)
    assert (claim.domain, claim.gpus) == ("gpu0-1", UUIDS)
    assert [device.share for device in claim.devices] == ["share-0", "share-1"]


@pytest.mark.parametrize(
    ("thing", "rule"),
    [
        (claim_object(result(pool="node2")), "claim-not-allocated"),
        ({**claim_object(), "status": {}}, "claim-not-allocated"),
        (claim_object(result(device="gpu-that-was")), "device-gone"),
        (claim_object(result(adminAccess=True)), "admin-access"),
        (claim_object(result(consumedCapacity=None)), "capacity-unknown"),
        (claim_object(result(memory="much")), "capacity-unknown"),
        (claim_object(result(threads="-1")), "capacity-unknown"),
        (claim_object(result(memory="64Mi")), "memory-below-context"),
        (claim_object(result(memory="80Gi")), "memory-over-card"),
        (claim_object(result(), result()), "device-twice"),
        (claim_object(result(0), result(1)), "devices-of-domains"),
        (claim_object(configs=(config(parameters(threadCap=20)),)), "cap-below-reservation"),
        (claim_object(configs=(config(parameters(threadCap=101)),)), "percent-range"),
        (claim_object(configs=(config(parameters(memory="2Gi")),)), "field-unknown"),
        (claim_object(configs=(config(parameters(priority="low")),)), "priority-unknown"),
        (
            claim_object(configs=(config({**parameters(), "apiVersion": "mpsd.io/v2"}),)),
            "config-version",
        ),
        (claim_object(configs=(config("threadCap: 60"),)), "wrong-type"),
    ],
)
def test_a_claim_that_can_have_no_grant_is_refused(thing: Object, rule: str) -> None:
    assert rule in refused(thing)


@pytest.mark.parametrize(
    ("results", "constraint"),
    [
        ((result(), result()), f"distinctAttribute: {DRIVER}/uuid"),
        ((result(0), result(1)), f"matchAttribute: {DRIVER}/domain"),
    ],
)
def test_the_constraint_that_would_have_kept_gpus_apart_or_together_is_named(
    results: tuple[Object, ...], constraint: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read_claim(claim_object(*results), UID, APART, POLICY, 1.0)
    assert constraint in refusal.value.problems[0].remedy


def test_a_claim_takes_as_much_of_each_gpu() -> None:
    assert refused(claim_object(result(0), result(1, memory="2Gi")), TOGETHER) == {"devices-uneven"}


def test_a_claim_of_the_same_name_is_not_the_one_that_kubelet_means() -> None:
    assert refused(claim_object(), uid="uid-of-the-one-before") == {"claim-replaced"}


def test_every_problem_is_reported_at_once() -> None:
    thing = claim_object(
        result(device="gone", adminAccess=True), configs=(config(parameters(speed=9)),)
    )
    assert refused(thing) == {"device-gone", "admin-access", "field-unknown"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
HOSTILE = st.dictionaries(
    st.sampled_from(["apiVersion", "kind", "threadCap", "x"]),
    JSON | st.sampled_from(["mpsd.io/v1alpha1", "MPSConfig"]),
)


@given(JSON | HOSTILE)
def test_parameters_are_right_or_refused_whatever_they_are(found: object) -> None:
    thing = claim_object(configs=(config(found),))
    if config_problems(found, "spec", POLICY):
        refused(thing)


@given(
    st.dictionaries(st.sampled_from(["device", "consumedCapacity", "request", "adminAccess"]), JSON)
)
def test_an_allocation_is_read_or_refused_whatever_it_is(changed: dict[str, object]) -> None:
    thing = claim_object({**result(), **changed})
    try:
        claim = read_claim(thing, UID, APART, POLICY, 1.0)
    except InvalidInput:
        return
    assert set(claim.gpus) <= set(UUIDS)
    assert 0 < claim.memory_mib <= GPUS[0].memory_mib


# -- beside other grants


def test_a_claim_has_no_room_beside_grants_that_the_scheduler_does_not_know() -> None:
    claim = prepared(result(memory="7Gi", threads="30"))
    assert not why_no_room(claim, [grant("a", 16)], APART, POLICY)
    assert why_no_room(claim, [grant("a", 17)], APART, POLICY)
    assert why_no_room(claim, [grant("a", 1, reserved_percent=80)], APART, POLICY)
    assert not why_no_room(claim, [grant("a", 23, gpu=1)], APART, POLICY)


@given(st.lists(st.tuples(st.integers(1, 23), st.integers(0, 20), st.integers(1, 48)), max_size=12))
def test_claims_never_take_more_than_a_gpu_has(wanted: list[tuple[int, int, int]]) -> None:
    taken: list[Grant] = []
    for number, (gib, steps, clients) in enumerate(wanted):
        thing = claim_object(result(0, f"{gib}Gi", str(steps * 5), str(clients)), name=f"c{number}")
        try:
            claim = read_claim(thing, f"uid-of-c{number}", APART, POLICY, 1.0)
        except InvalidInput:  # no room for a context
            continue
        if not why_no_room(claim, taken, APART, POLICY):
            taken.append(claim.grant(claim.pods))
    assert sum(one.memory_mib for one in taken) <= promised_mib(GPUS[0], POLICY)
    assert sum(one.reserved_percent for one in taken) <= POLICY.oversubscription.thread_percent
    assert sum(one.clients for one in taken) <= GPUS[0].capability.clients


def test_a_pod_has_one_claim_of_mpsd() -> None:
    first, second = prepared(name="share"), replace(prepared(name="other"), pods=(POD,))
    assert other_claim_of(second, [first])
    assert not other_claim_of(first, [first])
    assert not other_claim_of(prepared(name="third"), [first, second])


def test_pods_that_share_a_claim_share_its_grant() -> None:
    """The second one starts without kubelet asking for the claim again."""
    claim = prepared()
    late = NodePod(PodName("default", "late", "uid-of-late"), (), ("share",))
    elsewhere = NodePod(PodName("team-b", "other", "uid-of-other"), (), ("share",))
    assert claim_holders([claim], [late, elsewhere]) == {UID: (POD, late.identity)}


def test_a_pod_counts_for_the_smallest_of_its_claims() -> None:
    small, large = prepared(result(memory="2Gi"), name="small"), prepared(name="large")
    both = NodePod(PodName("default", "both", "uid-of-both"), (), ("large", "small"))
    holders = claim_holders([large, small], [both])
    assert both.identity in holders[small.uid]
    assert both.identity not in holders[large.uid]


def test_a_claim_that_is_prepared_again_keeps_what_it_holds() -> None:
    before, late = prepared(pods=1), prepared(pods=2).pods
    assert refreshed(before, late) == replace(before, pods=late)


def test_a_claim_that_has_left_is_taken_up_again_with_all_its_pods_where_it_is_the_same() -> None:
    before = replace(prepared(pods=1), left=True)
    next_pod = PodName("default", "next", "uid-of-next")
    now = replace(prepared(), pods=(next_pod,))
    assert taken_up(before, now) == replace(now, pods=(POD, next_pod))
    assert taken_up(before, prepared(result(memory="9Gi"))) is None


def test_a_pod_with_a_claim_of_the_name_of_one_that_has_left_has_the_new_one() -> None:
    old, new = replace(prepared(), uid="old", left=True), replace(prepared(), uid="new", pods=())
    late = NodePod(PodName("default", "late", "uid-of-late"), (), ("share",))
    for claims in ([old, new], [new, old]):
        assert claim_holders(claims, [late]) == {"old": (POD,), "new": (late.identity,)}


def test_what_was_prepared_before_is_a_fact_whatever_the_policy_says_today() -> None:
    thing = claim_object(result(threads="5"), configs=(config(parameters(threadCap=10)),))
    strict = replace(
        POLICY,
        requests=replace(POLICY.requests, minimum_thread_percent=50, default_thread_percent=100),
    )
    with pytest.raises(InvalidInput):
        read_claim(thing, UID, APART, strict, 1.0)
    kept = read_claim(thing, UID, APART, strict, 1.0, started=10)
    assert kept == read_claim(thing, UID, APART, POLICY, 1.0)


def test_what_was_prepared_before_is_kept_though_its_gpus_have_been_divided() -> None:
    thing = claim_object(result(0), result(1))
    kept = read_claim(thing, UID, APART, POLICY, 1.0, started=100)
    assert (kept.domain, kept.gpus) == ("gpu0", UUIDS)


def test_of_what_was_prepared_before_only_what_is_of_this_node_counts() -> None:
    thing = claim_object(result(0), result(1, device="gpu-of-before"), result(1, pool="another"))
    assert read_claim(thing, UID, APART, POLICY, 1.0, started=100).gpus == UUIDS[:1]
    with pytest.raises(InvalidInput):  # unknown is never zero
        read_claim(claim_object(result(memory="?")), UID, APART, POLICY, 1.0, started=100)


def test_claims_that_are_served_no_longer_are_known_by_their_gpus() -> None:
    unserved = replace(APART, driver="")
    assert read_claim(claim_object(), UID, unserved, POLICY, 1.0, started=100).gpus == UUIDS[:1]
    with pytest.raises(InvalidInput):
        read_claim(claim_object(result(device="gpu-0")), UID, unserved, POLICY, 1.0)


def test_a_cdi_file_says_what_its_programs_were_started_with() -> None:
    spec = spec_of(DRIVER, prepared(), Answer({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}))
    assert started_with(spec) == 30
    assert started_with(spec_of(DRIVER, prepared(), Answer({}))) is None
    below = spec_of(DRIVER, prepared(), Answer({"CUDA_MPS_CLIENT_PRIORITY": "1"}))
    assert (started_with(below, "CUDA_MPS_CLIENT_PRIORITY"), started_with(below)) == (1, None)


# -- priorities

BY_ANNOTATION = replace(POLICY, gpu_priority=GpuPriority("annotation"))


def rows(*written: str | None) -> list[NodePod]:
    """The pods share-0, share-1, … with these annotations."""
    names = [PodName("default", f"share-{n}", f"uid-of-share-{n}") for n in range(len(written))]
    return [
        NodePod(name, (), (), PodPriority(written=one))
        for name, one in zip(names, written, strict=True)
    ]


@pytest.mark.parametrize(
    ("written", "priority"),
    [
        (("below-normal", "below-normal"), 1),
        (("below-normal", "normal"), 0),
        (("below-normal", None), 0),
        (("below-normal",), 1),  # the other is not known any more
        ((), 0),
    ],
)
def test_a_claim_is_below_normal_where_the_policy_says_so_of_each_of_its_pods(
    written: tuple[str | None, ...], priority: int
) -> None:
    claim = prepared(pods=2)
    assert with_priority(claim, rows(*written), BY_ANNOTATION).priority == priority
    assert with_priority(claim, rows(*written), POLICY) == claim


@pytest.mark.parametrize(
    ("configs", "priority"),
    [
        ([("FromClaim", "below-normal")], 1),
        ([("FromClass", "below-normal"), ("FromClaim", "normal")], 1),
        ([("FromClass", "normal"), ("FromClaim", "below-normal")], 1),
        ([], None),
    ],
)
def test_parameters_lower_a_claim_s_priority_and_never_raise_it(
    configs: list[tuple[str, str]], priority: int | None
) -> None:
    given = tuple(config(parameters(priority=word), source) for source, word in configs)
    claim = prepared(configs=given)
    assert claim.priority == priority
    assert claim.grant(claim.pods).priority == (priority or 0)
    assert with_priority(claim, rows("below-normal"), BY_ANNOTATION).priority == 1
    assert with_priority(claim, rows("normal"), BY_ANNOTATION).priority == (priority or 0)


def test_while_its_processes_live_a_claim_that_is_taken_up_keeps_their_priority() -> None:
    before, now = replace(prepared(), left=True, priority=0), replace(prepared(), priority=1)
    again = taken_up(before, now)
    assert again
    assert again.priority == 0


# -- CDI


def test_a_cdi_device_gives_a_container_what_the_device_plugin_would() -> None:
    gate = DeviceNode("/run/mpsd/gpu0/gate", "/run/mpsd/gpu0/gate", "r")
    mount = HostMount("/run/mpsd/gpu0/client", "/run/mpsd/client", read_only=True)
    claim = prepared(result(1), result(0), node=TOGETHER)
    answer = Answer({"CUDA_MPS_PIPE_DIRECTORY": "/run/mpsd/client"}, (mount,), (gate,))
    spec = json.loads(spec_of(DRIVER, claim, answer))
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "gpu.mpsd.io/claim")
    for device in spec["devices"]:
        assert device["containerEdits"] == {
            "env": ["CUDA_MPS_PIPE_DIRECTORY=/run/mpsd/client"],
            "deviceNodes": [{"path": gate.inside, "hostPath": gate.source, "permissions": "r"}],
            "mounts": [
                {
                    "hostPath": mount.source,
                    "containerPath": mount.inside,
                    "options": ["rbind", "rprivate", "ro"],
                }
            ],
        }
    names = {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
    each = {name_of(DRIVER, UID, one.device) for one in claim.devices}
    assert names == each
    assert len(each) == 2


def test_a_cdi_file_says_whose_it_is() -> None:
    assert owner_of(DRIVER, file_of(DRIVER, UID)) == UID
    for other in ("nvidia.yaml", "gpu.nvidia.com-claim-1.json", f".{file_of(DRIVER, UID)}.new"):
        assert owner_of(DRIVER, other) == ""
