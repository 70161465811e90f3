"""What is told of a change: whom it reaches, and whom it ends."""

from dataclasses import replace

from mpsd.containers.rules.grant_change import changed, is_misuse, report
from mpsd.grants.rules.messages import GrantChanged, GrantChangeRequest
from mpsd.model.grants import GpuShare, Grant
from mpsd.model.identity import HostContainer
from mpsd.model.node_view import Client, HeldGrant, NodeView
from mpsd.model.policy import Policy, Response
from tests.model.worlds import POLICY, UUIDS, grant, identity, view

CONTAINER = HostContainer("/run/runc", "c1", "train", identity(7), is_made=True)
IN_CONTAINER = replace(grant("a", 6), holder=CONTAINER)


def using(held: Grant, used_mib: int | None) -> NodeView:
    own = Client(identity(8), UUIDS[0], used_mib, True, "train", held.id)
    return view(grants=(HeldGrant(held, True),), clients=(own,))


def change(
    held: Grant, what: GrantChangeRequest, seen: NodeView, policy: Policy = POLICY
) -> GrantChanged:
    after = changed(held, what, seen, policy)
    assert isinstance(after, Grant), after
    return report(held, after, seen, policy, dry_run=False)


def test_of_a_container_it_is_said_whom_exec_and_restart_give_what() -> None:
    (said,) = change(
        IN_CONTAINER, GrantChangeRequest(memory_mib=8192), using(IN_CONTAINER, 100)
    ).messages
    assert "the next one that `docker exec` starts gets the new values" in said
    assert "`docker restart` starts with the container's own variables" in said


def test_by_force_it_is_said_that_what_is_over_ends_where_the_policy_ends_it() -> None:
    less = GrantChangeRequest(memory_mib=2048, forced=True)
    messages = change(IN_CONTAINER, less, using(IN_CONTAINER, 3000)).messages
    assert (
        messages[-1]
        == "its processes use 3000 MiB of gpu0, and 2048 MiB are granted now: mpsd ends those that"
        " exceed it"
    )
    within = change(IN_CONTAINER, less, using(IN_CONTAINER, 2048 + 32)).messages
    assert not any("are granted now" in message for message in within)
    over = replace(POLICY.violations.memory_over_grant, action=Response.WARN)
    lenient = replace(POLICY, violations=replace(POLICY.violations, memory_over_grant=over))
    assert (
        "does not end them"
        in change(IN_CONTAINER, less, using(IN_CONTAINER, 3000), lenient).messages[-1]
    )
    assert (
        "use an unknown amount of gpu0"
        in change(IN_CONTAINER, less, using(IN_CONTAINER, None)).messages[-1]
    )


def test_what_changes_nothing_is_said_to() -> None:
    same = change(IN_CONTAINER, GrantChangeRequest(memory_mib=6144), using(IN_CONTAINER, 100))
    assert same.messages == ("nothing changes",)
    assert same.before == same.after


def test_one_percentage_for_all_gpus_is_said_where_a_gpu_reserves_more() -> None:
    parts = (GpuShare(UUIDS[0], 3000, 25), GpuShare(UUIDS[1], 3000, 60))
    held = replace(IN_CONTAINER, parts=parts, thread_percent=25)
    messages = change(held, GrantChangeRequest(percent=30, gpu=UUIDS[0]), using(held, 100)).messages
    assert (
        messages[-1] == "MPS has one percentage for all GPUs of a process: it is the smallest, 30 %"
    )


def test_a_wrong_question_is_told_from_what_cannot_be_now() -> None:
    seen = using(IN_CONTAINER, 3000)
    for wrong in (
        GrantChangeRequest(),
        GrantChangeRequest(percent=101),
        GrantChangeRequest(weight=0),
        GrantChangeRequest(memory_mib=3000, gpu="GPU-none"),
    ):
        found = changed(IN_CONTAINER, wrong, seen, POLICY)
        assert isinstance(found, tuple)
        assert is_misuse(found), wrong
    for no in (
        GrantChangeRequest(memory_mib=10**6),
        GrantChangeRequest(memory_mib=2000),
        GrantChangeRequest(weight=3),
    ):
        found = changed(IN_CONTAINER, no, seen, POLICY)
        assert isinstance(found, tuple)
        assert not is_misuse(found), no
