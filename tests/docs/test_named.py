"""Whatever mpsd says to people by name stands in the documentation by that name."""

import pytest

from mpsd.admission.rules.verdict import label_of
from mpsd.containers.dialects.names import VARIABLES
from mpsd.model.conditions import mps_ready
from mpsd.model.domain import State
from mpsd.model.events import Reason
from mpsd.model.policy import RuleMode, Violations
from tests.docs.pages import ROOT, page
from tests.model.manifests import POLICY
from tests.prometheus.shipped import NAMES
from tests.status.pod_worlds import node


def test_each_reason_of_an_event_and_nothing_else_has_a_heading() -> None:
    sections = page("docs/events.md").text.split("\n## ")[1:]
    assert {section.splitlines()[0] for section in sections} == {reason.value for reason in Reason}


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_says_where_it_is_told_what_it_means_and_what_to_do(reason: Reason) -> None:
    _before, section = page("docs/events.md").text.split(f"\n## {reason.value}\n\n", 1)
    section = section.split("\n## ", 1)[0]
    assert section.startswith("*On the ")
    assert "\n- **Means:** " in section
    assert "\n- **Do:** " in section


@pytest.mark.parametrize("name", ["docs/README.md", "docs/operations/README.md"])
def test_an_index_leads_to_every_page_of_its_folder(name: str) -> None:
    index = page(name)
    linked = {link.partition("#")[0] for link in index.links}
    missing = {path.name for path in index.path.parent.glob("*.md")} - {"README.md"} - linked
    assert missing == set(), f"add a line to {name}"


def test_the_map_names_every_room() -> None:
    rooms = {folder.parent.name for folder in (ROOT / "mpsd").glob("*/__init__.py")}
    text = page("docs/developing.md").text
    assert {room for room in rooms if f"`mpsd/{room}`" not in text} == set(), (
        "add a paragraph to docs/developing.md"
    )


def test_every_reason_of_the_condition_is_explained() -> None:
    reasons = {mps_ready(node(state=state)).reason for state in State}
    assert {
        reason for reason in reasons if f"| {reason} |" not in page("docs/mpsnode.md").text
    } == set()


@pytest.mark.parametrize("state", State)
def test_a_state_of_a_domain_says_what_to_do(state: State) -> None:
    assert f"\n| {state} | " in page("docs/operations/on-call.md").text


@pytest.mark.parametrize("kind", Violations.__dataclass_fields__)
def test_a_kind_of_violation_has_a_row_with_its_action(kind: str) -> None:
    rows = [
        line
        for line in page("docs/operations/violations.md").text.splitlines()
        if line.startswith(f"| {kind} | ")
    ]
    assert [row.rsplit("|", 2)[1].strip() for row in rows] == [
        str(getattr(POLICY.violations, kind).action)
    ]


def test_each_alert_and_nothing_else_has_a_heading_of_its_kind() -> None:
    headings = [
        line.removeprefix("### ") for line in page("docs/operations/alerts.md").text.splitlines()
    ]
    assert {heading for heading in headings if heading.startswith("MPSD")} == set(NAMES)


def test_every_label_of_admission_and_every_field_that_its_page_speaks_of_is_named() -> None:
    text = page("docs/admission.md").text
    assert all(f"`{label_of(mode)}`" in text for mode in RuleMode)
    fields = [
        "exempt_namespaces",
        "host_ipc",
        "void_visible_devices",
        "visible_devices_kept_for",
        "placement_accounts",
    ]
    assert all(f"`{field}" in text and hasattr(POLICY.admission, field) for field in fields)


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_of_a_dialect_is_in_its_page(variable: str) -> None:
    text = page("docs/dialects.md").text
    assert f"`{variable}" in text or f"`…{variable.removeprefix('ALIYUN_COM_GPU_MEM')}" in text
