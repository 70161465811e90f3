"""The condition MPSReady: the worst that is seen, in words, and since when."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.conditions import (
    Truth,
    condition_object,
    is_to_be_left,
    mps_ready,
    node_status_patch,
)
from mpsd.model.domain import State
from mpsd.model.gpu_health import GpuCondition, HealthCause
from mpsd.model.node_view import DomainView, UnreadableGrant
from tests.model.gpu_worlds import client
from tests.model.worlds import LOST, UUIDS, blind, record
from tests.status.pod_worlds import held, node


def test_the_worst_domain_gives_the_reason_and_its_own_is_quoted() -> None:
    view = node(state=State.STARTING)
    worse = DomainView(record(1, State.REFUSED, reason="MIG is on"), frozenset())
    found = mps_ready(replace(view, domains=(view.domains[0], worse)))
    assert found.reason == "DomainRefused"
    assert "MIG is on" in found.message


def test_a_gpu_in_trouble_is_named_in_its_own_words_and_not_as_cordoned() -> None:
    view = node(state=State.DRAINED)
    found = mps_ready(replace(view, troubles={UUIDS[0]: "gpu0 is lost; reset it"}))
    assert (found.status, found.reason) == (Truth.FALSE, "GPUUnavailable")
    assert found.message == "1 of 2 domains serve; gpu0 is lost; reset it"


def test_a_node_with_every_gpu_cordoned_takes_no_pods() -> None:
    view = node(state=State.DRAINED)
    other = DomainView(record(1, State.DRAINING), frozenset())
    assert mps_ready(replace(view, domains=(view.domains[0], other))).reason == "Cordoned"


def test_a_gpu_that_drains_since_it_is_sick_is_not_said_to_be_cordoned() -> None:
    view = node(state=State.READY)
    sick = GpuCondition(view.gpus[1].uuid, HealthCause.XID, "Xid 79")
    drains = record(1, State.DRAINING, reason="gpu1 is sick: Xid 79")
    drains = replace(drains, health=(sick,))
    found = mps_ready(replace(view, domains=(view.domains[0], DomainView(drains, frozenset()))))
    assert (found.status, found.reason) == (Truth.FALSE, "GPUSick")
    assert "Xid 79" in found.message


def test_gpus_that_no_daemon_has_spoken_of_are_named() -> None:
    view = node()
    found = mps_ready(replace(view, domains=view.domains[:1]))
    assert (found.status, found.reason) == (Truth.FALSE, "ControlAbsent")
    assert "gpu1" in found.message
    assert mps_ready(replace(view, domains=(), gpus=())).reason == "NoGPUs"


def test_what_cannot_be_seen_makes_it_unknown_unless_it_is_known_to_be_worse() -> None:
    why = ("kubelet does not answer",)
    found = mps_ready(node(grants_known=False, unknown=why))
    assert (found.status, found.message) == (Truth.UNKNOWN, *why)
    worse = mps_ready(node(grants_known=False, unknown=why, state=State.DOWN))
    assert worse.status is Truth.FALSE


def test_a_gpu_that_cannot_be_seen_is_named_and_the_node_serves_by_the_others() -> None:
    found = mps_ready(blind(node(), UUIDS[1]))
    assert (found.status, found.reason) == (Truth.TRUE, "SomeNotSeen")
    assert (
        found.message == f"1 of 2 domains serve; it is not known which processes use gpu1: {LOST}"
    )
    for none_serves in (blind(node()), blind(node(state=State.DRAINING), UUIDS[1])):
        found = mps_ready(none_serves)
        assert (found.status, found.reason) == (Truth.UNKNOWN, "NotSeen")


def test_a_gpu_of_a_grant_that_cannot_be_read_is_named_and_the_others_serve() -> None:
    one = UnreadableGrant("a", "/run/mpsd/agent/grants/a.json", "not JSON", "gpu1")
    found = mps_ready(replace(node(unknown=("gpu1 takes no new grant",)), unreadable=(one,)))
    assert (found.status, found.reason) == (Truth.TRUE, "SomeNotSeen")
    anywhere = replace(node(), unreadable=(replace(one, domain=None),))
    assert mps_ready(anywhere).status is Truth.UNKNOWN


def test_since_when_it_is_so_changes_with_the_status_alone() -> None:
    well, down = mps_ready(node()), mps_ready(node(state=State.DOWN))
    first = condition_object(well, None, "t1")
    assert first["lastTransitionTime"] == "t1"
    assert (
        condition_object(replace(well, message="other"), first, "t2")["lastTransitionTime"] == "t1"
    )
    assert condition_object(down, first, "t3")["lastTransitionTime"] == "t3"


def test_a_nodes_patch_names_our_condition_and_our_resource_alone() -> None:
    condition = condition_object(mps_ready(node()), None, "t1")
    patch = node_status_patch(condition, "aliyun.com/gpu-count", 2, "t2", "")
    assert patch == {
        "status": {
            "conditions": [condition | {"lastHeartbeatTime": "t2"}],
            "capacity": {"aliyun.com/gpu-count": "2"},
            "allocatable": {"aliyun.com/gpu-count": "2"},
        }
    }


def test_a_resource_that_changes_its_name_is_taken_away_under_the_former_one() -> None:
    patch = node_status_patch({}, "example.com/gpus", 2, "t2", "aliyun.com/gpu-count")
    assert patch["status"]["capacity"] == {"aliyun.com/gpu-count": None, "example.com/gpus": "2"}


_UPGRADE = "nvidia.com/gpu-driver-upgrade-state=drain-required"


def test_an_upgrade_of_the_driver_comes_before_the_state_of_daemons_that_are_gone_for_it() -> None:
    for view in (
        node(state=State.DOWN),
        replace(node(), domains=()),
        replace(node(), domains=(), gpus=()),
    ):
        found = mps_ready(view, _UPGRADE)
        assert (found.status, found.reason) == (Truth.FALSE, "DriverUpgrade")
        assert _UPGRADE in found.message


def test_the_pods_that_an_upgrade_waits_for_are_named() -> None:
    grants = tuple(held(f"train-{number}") for number in range(5))
    named = "it waits for default/train-0, default/train-1, default/train-2 and 2 more"
    assert mps_ready(node(grants=grants), _UPGRADE).message.endswith(named)
    assert "no pod has a grant" in mps_ready(node(), _UPGRADE).message
    foreign = mps_ready(node(clients=(client(4321, None),)), _UPGRADE).message
    assert foreign.endswith("it waits for pid 4321, which has no grant")
    wedged = mps_ready(node(state=State.WEDGED), _UPGRADE).message
    assert wedged.endswith("it waits for gpu0, which is wedged")
    assert "no pod has a grant" not in mps_ready(node(grants_known=False), _UPGRADE).message


_STATES = st.sampled_from(State)


@given(
    st.tuples(_STATES, _STATES),
    st.booleans(),
    st.booleans(),
    st.sampled_from((None, False, True)),
    st.booleans(),
)
def test_a_node_is_left_for_an_upgrade_only_where_nobody_can_use_its_gpus(
    states: tuple[State, State], is_held: bool, grants_known: bool, on_mps: bool | None, left: bool
) -> None:
    """on_mps: of a program without a grant; None for no program."""
    domains = tuple(
        DomainView(record(number, state), frozenset()) for number, state in enumerate(states)
    )
    grants = (held("train"),) if is_held else ()
    clients = () if on_mps is None else (client(7, None, on_mps=on_mps),)
    view = replace(node(grants=grants, grants_known=grants_known), domains=domains, clients=clients)
    idle = (
        not is_held
        and not on_mps
        and grants_known
        and {*states} <= {State.DRAINED, State.REFUSED, State.DOWN}
    )
    assert is_to_be_left(view, _UPGRADE, left=left) == (idle or left)
    assert not is_to_be_left(view, "", left=left)
