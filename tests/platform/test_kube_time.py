"""Times as Kubernetes writes them."""

import pytest

from mpsd.platform.kube_time import seconds, stamp


def test_a_time_is_read_as_it_was_written() -> None:
    assert stamp(seconds("2026-11-21T08:30:00Z") or 0) == "2026-11-21T08:30:00Z"
    assert seconds("2026-11-21T09:30:00.500000+01:00") == (seconds("2026-11-21T08:30:00Z") or 0) + 0.5


@pytest.mark.parametrize("text", ["", "T", "2026-11-21", "2026-11-21T08:30:00", "9999-99-99T00:00:00Z", "now"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert seconds(text) is None
