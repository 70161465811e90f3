"""What is told of a grant, whoever holds it."""

from dataclasses import replace

from mpsd.core.identity import PodName
from mpsd.core.node_status import node_status
from mpsd.core.node_view import HeldGrant
from tests.core.worlds import POLICY, grant, view


def test_a_grant_of_a_pod_names_the_pod_and_one_of_a_program_its_pid() -> None:
    program = grant("a", 1)
    pod = replace(grant("b", 2), holder=PodName("default", "train-0", "a-uid"), command="default/train-0")
    told = node_status(view(grants=(HeldGrant(program, True), HeldGrant(pod, True))), POLICY).grants
    assert [(one.holder_pid, one.namespace, one.pod) for one in told] == [
        (program.holder.pid, None, None),  # type: ignore[union-attr]
        (None, "default", "train-0"),
    ]
