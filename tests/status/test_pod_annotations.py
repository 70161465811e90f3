"""Annotations that a pod must have."""

from mpsd.model.identity import PodName
from mpsd.status.rules.pods import PodAnnotations
from tests.status.pod_worlds import pod


def test_only_what_differs_is_written_on_the_very_pod() -> None:
    annotations = PodAnnotations(
        pod("a"), {"mpsd.io/gpu": "GPU-0", "theirs": "1"}, {"mpsd.io/gpu": "GPU-1", "other": "2"}
    )
    assert annotations.patch == {
        "metadata": {"uid": "uid-of-a", "annotations": {"mpsd.io/gpu": "GPU-1", "other": "2"}}
    }
    assert PodAnnotations(pod("a"), {"a": "1", "b": "2"}, {"a": "1"}).missing == {}
    of_name = PodAnnotations(PodName("default", "a", ""), {}, {"a": "1"})
    assert of_name.patch == {"metadata": {"annotations": {"a": "1"}}}
