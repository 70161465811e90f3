"""Annotations that a pod must have."""

from typing import Any

import pytest

from mpsd.model.identity import PodName
from mpsd.status.rules.pods import PodAnnotations
from tests.status.pod_worlds import pod


@pytest.mark.parametrize(
    ("name", "has", "metadata"),
    [
        (pod("a"), {"a": "0", "theirs": "1"}, {"uid": "uid-of-a", "annotations": {"a": "1"}}),
        (pod("a"), {"a": "1", "theirs": "1"}, {"uid": "uid-of-a", "annotations": {}}),
        (PodName("default", "a", ""), {}, {"annotations": {"a": "1"}}),
    ],
)
def test_only_what_differs_is_written_on_the_very_pod(
    name: PodName, has: dict[str, str], metadata: dict[str, Any]
) -> None:
    annotations = PodAnnotations(name, has, {"a": "1"})
    assert annotations.patch == {"metadata": metadata}
