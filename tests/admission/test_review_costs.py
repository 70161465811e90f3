"""What a review costs, in calls and not in time: in proportion to what it lists, whatever its texts
are."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from mpsd.model.fields import Fields
from tests.admission.reviews import review_of, validated
from tests.model.manifests import container, pod

_LONG = 2_800 * 1024
_MOST_CALLS_A_PATH = 155
Paths = Callable[[int], str]
PATHS: dict[str, Paths] = {
    "devices": lambda number: f"/dev/nvidia{number}",
    "sockets": lambda number: f"/run/x{number}",
    "ours": lambda number: f"/run/mpsd/{number}",
    "back": lambda number: f"/dev/../{number}",
    "deep": lambda number: f"/dev/{number}" + "/a" * 300,
    "slashes": lambda number: f"/dev{'/./' * 300}{number}",
}
TEXTS = {
    "slashes": "/" * _LONG,
    "steps": "/a" * (_LONG // 2),
    "points": "/./" * (_LONG // 3),
    "one step": "/dev/" + "a" * _LONG,
    "words": "/dev/nvidia" + " a" * (_LONG // 2),
}


def calls(review: Fields) -> int:
    """Functions that are called for it, those of C too."""
    count = 0

    def see(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        if event in {"call", "c_call"}:
            count += 1

    sys.setprofile(see)
    try:
        validated(review)
    finally:
        sys.setprofile(None)
    return count


def mounting(*paths: str, **metadata: object) -> Fields:
    volumes = [
        {"name": f"v{number}", "hostPath": {"path": path}} for number, path in enumerate(paths)
    ]
    asking = container(limits={"aliyun.com/gpu-mem": 8})
    return review_of(pod(asking, volumes=volumes, **metadata))


@pytest.mark.parametrize("kind", PATHS)
def test_thousands_of_host_paths_cost_a_few_calls_each(kind: str) -> None:
    path = PATHS[kind]
    few = calls(mounting(*map(path, range(1000))))
    many = calls(mounting(*map(path, range(4000, 8000))))
    assert many <= 4.2 * few
    assert many <= _MOST_CALLS_A_PATH * 4000


@pytest.mark.parametrize("kind", TEXTS)
def test_a_path_of_megabytes_costs_as_many_calls_as_a_short_one(kind: str) -> None:
    assert calls(mounting(TEXTS[kind])) <= calls(mounting("/dev/nvidia0")) + 100
