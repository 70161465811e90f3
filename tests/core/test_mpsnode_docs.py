"""docs/mpsnode.md names every reason that people may meet."""

from pathlib import Path

from mpsd.core.domain_states import State
from mpsd.core.events import Reason
from mpsd.core.mps_ready import mps_ready
from tests.core.pod_worlds import node

_PAGE = (Path(__file__).parents[2] / "docs" / "mpsnode.md").read_text()


def test_every_reason_of_an_event_is_explained() -> None:
    assert [reason for reason in Reason if reason.value not in _PAGE] == []


def test_every_reason_of_the_condition_is_explained() -> None:
    reasons = {mps_ready(node(state=state)).reason for state in State}
    assert {reason for reason in reasons if f"| {reason} |" not in _PAGE} == set()
