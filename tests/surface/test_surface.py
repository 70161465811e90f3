"""Nothing that users hold in their hands changes unseen: flags, metrics, fields, names, exit codes."""

import json
from collections.abc import Mapping

import pytest

from tests.surface.changes import CHANGES
from tests.surface.made import KEPT, ROOT, Section, surface

Sections = Mapping[str, Section]


def differences(kept: Sections, made: Sections) -> dict[str, str]:
    """What became of each name whose value is another, by `section: name`."""
    found = {}
    for section in sorted({*kept, *made}):
        before, now = kept.get(section, {}), made.get(section, {})
        for name in sorted({*before, *now}):
            if name not in now:
                found[f"{section}: {name}"] = f"gone (was {before[name]!r})"
            elif name not in before:
                found[f"{section}: {name}"] = f"new ({now[name]!r})"
            elif before[name] != now[name]:
                found[f"{section}: {name}"] = f"was {before[name]!r}, is {now[name]!r}"
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return differences(json.loads(KEPT.read_text()), surface())


def test_the_surface_differs_only_where_it_is_meant_to(found: dict[str, str]) -> None:
    lines = [f"{name}: {what}" for name, what in found.items() if name not in CHANGES]
    assert not lines, "\n".join(["put it back, or give the reason in tests/surface/changes.py:", *lines])


def test_every_change_that_is_meant_is_there(found: dict[str, str]) -> None:
    assert CHANGES.keys() - found.keys() == set()


def test_every_change_is_in_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in CHANGES if name.split()[-1] not in text] == []


def test_a_difference_is_gone_new_or_another_value() -> None:
    kept = {"metrics": {"a": "gauge", "b": "gauge", "c": "gauge"}}
    made = {"metrics": {"a": "gauge", "b": "counter", "d": ""}, "alerts": {"E": "info"}}
    assert differences(kept, made) == {
        "alerts: E": "new ('info')",
        "metrics: b": "was 'gauge', is 'counter'",
        "metrics: c": "gone (was 'gauge')",
        "metrics: d": "new ('')",
    }
