"""Events as Kubernetes keeps them."""

import kubernetes_validate

from mpsd.model.events import (
    Event,
    EventCount,
    Reason,
    event_object,
    event_patch,
    node_subject,
    pod_subject,
)
from tests.status.pod_worlds import pod

POD = Event(pod_subject(pod("train")), Reason.FAULT, "a fault")
NODE = Event(node_subject("node1"), Reason.READY, "serves")


def test_an_event_is_valid_for_a_pod_and_for_a_node() -> None:
    for happening in (POD, NODE):
        event = event_object(EventCount(happening, 1, 2, 3), "node1")
        kubernetes_validate.validate(event, kubernetes_validate.latest_version(), strict=True)


def test_an_event_of_a_node_is_where_kubectl_describe_looks_for_it() -> None:
    event = event_object(EventCount(NODE, 1, 2, 3), "node1")
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"]["uid"] == "node1"
    assert (event["type"], event["count"]) == ("Normal", 3)


def test_the_same_happening_has_the_same_name_and_another_has_another() -> None:
    names = {
        EventCount(happening, 1, 1, 1).name
        for happening in (
            POD,
            Event(POD.subject, POD.reason, "another"),
            Event(POD.subject, Reason.WEDGED, POD.message),
            Event(pod_subject(pod("other")), POD.reason, POD.message),
        )
    }
    assert len(names) == 4
    assert EventCount(POD, 1, 1, 1).name == EventCount(POD, 5, 6, 7).name


def test_a_name_and_a_message_are_no_longer_than_kubernetes_takes() -> None:
    long = Event(node_subject("n" * 253), Reason.FAULT, "m" * 5000)
    event = event_object(EventCount(long, 1, 1, 1), "node1")
    assert len(event["metadata"]["name"]) <= 253
    assert len(event["message"]) == 1024


def test_counting_up_changes_the_count_and_the_last_time() -> None:
    assert event_patch(EventCount(POD, 1, 2, 3)) == {
        "count": 3,
        "lastTimestamp": "1970-01-01T00:00:02Z",
    }
