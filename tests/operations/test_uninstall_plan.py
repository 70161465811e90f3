"""What is mpsd's, in which order it goes, and who would lose something."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.mpsnode import cluster_status
from mpsd.operations.lifecycle.rules.emptying import Stage, Thing, in_order, in_use
from tests.mpsnodes import NAMES, NOW, damaged, mpsnode

groups = st.sampled_from(
    [
        "v1",
        "apps/v1",
        "batch/v1",
        "rbac.authorization.k8s.io/v1",
        "admissionregistration.k8s.io/v1",
        "cert-manager.io/v1",
    ]
)
kinds = st.sampled_from(["DaemonSet", "ServiceAccount", "RoleBinding", "Secret", "Widget"])
names = st.sampled_from(["mpsd-control", "mpsd-agent", "mpsd-webhook"])


@st.composite
def things(draw: st.DrawFn) -> Thing:
    name = draw(names)
    uid = str(draw(st.integers(0, 10_000)))
    return Thing(
        draw(groups), "", draw(kinds), draw(st.sampled_from(["", "mpsd-system"])), name, uid, name
    )


@given(st.lists(things(), max_size=12))
def test_everything_goes_once_and_daemons_after_whatever_sends_them_pods(
    found: list[Thing],
) -> None:
    order = in_order(found)
    assert sorted(map(repr, order)) == sorted(map(repr, found))
    stages = [one.stage for one in order]
    assert stages == sorted(stages)
    daemons = [at for at, one in enumerate(order) if one.stage is Stage.DAEMONS]
    agents = [at for at, one in enumerate(order) if one.stage is Stage.SERVERS]
    assert not daemons or not agents or max(agents) < min(daemons)
    assert in_order(reversed(order)) == order or len({str(one) for one in order}) < len(order)


def users(*things: Any, daemons: tuple[str, ...] = NAMES) -> list[str]:
    return list(in_use(cluster_status(things, NOW), daemons))


def test_pods_and_programs_of_no_pod_are_named() -> None:
    used = mpsnode("gpu-a1")
    used["status"]["gpus"][1]["clients"] = 2
    assert users(used, daemons=("gpu-a1",)) == [
        "gpu-a1: pod default/mps-sample-7xk2p (7 GiB of gpu0)",
        "gpu-a1: pod default/train-0 (12 GiB of gpu0)",
        "gpu-a1: pod research/notebook-ada (8 GiB of gpu0)",
        "gpu-a1: gpu1 has 2 clients of no pod",
    ]
    used["status"] |= {"grants": [], "gpus": []}
    assert users(used, daemons=("gpu-a1",)) == []


def test_what_is_not_known_counts_as_use_where_a_daemon_runs() -> None:
    idle = mpsnode("gpu-b1")
    assert users(idle, daemons=()) == []
    (silent,) = users(idle, daemons=("gpu-b1",))
    assert silent.startswith(
        "the users of the GPUs of gpu-b1 are not known: gpu-b1 has reported nothing for 87 min"
    )
    (missing,) = users(daemons=("gpu-b7",))
    assert (
        missing
        == "gpu-b7 runs a control daemon and has no MPSNode, so the users of its GPUs are not known"
    )
    unknown = mpsnode("gpu-a1")
    del unknown["status"]["grants"]
    assert "the users of the GPUs of gpu-a1 are not known: it does not report its pods" in users(
        unknown
    )
    for gpu in unknown["status"]["gpus"]:
        gpu.pop("clients")
    assert "gpu-a1: the number of programs on gpu1 is not known" in users(
        unknown, daemons=("gpu-a1",)
    )


def test_what_a_node_told_last_holds_once_no_agent_can_let_anybody_onto_its_gpus() -> None:
    """An uninstall that was given up after the agents had gone can go on, however long ago that
    was."""

    def left(thing: Any) -> list[str]:
        return list(in_use(cluster_status([thing], NOW), ["gpu-b1", "gpu-b2"], agents=False))

    idle = mpsnode("gpu-b1")
    assert not any("gpu-b1:" in one or "of gpu-b1 " in one for one in left(idle))
    idle["status"]["gpus"][0]["clients"] = 1
    assert "gpu-b1: gpu0 has 1 client of no pod" in left(idle)
    assert any(
        "the users of the GPUs of gpu-b2 are not known" in one for one in left(mpsnode("gpu-b2"))
    )


@given(damaged())
def test_whatever_a_node_tells_nobody_is_overlooked(thing: Any) -> None:
    """Either somebody is named, or what it told was read to the end and names nobody."""
    status = cluster_status([thing], NOW)
    (node,) = status.nodes
    named = list(in_use(status, [node.name]))
    used = node.pods is None or node.pods or any(gpu.clients != 0 for gpu in node.gpus)
    assert named or not (used or node.unreadable or node.stale or node.reported_at is None)
