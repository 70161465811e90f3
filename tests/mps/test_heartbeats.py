"""Heartbeats of GPUs: one that is old, of another boot or of nobody leaves its GPU unwatched."""

from pathlib import Path

import pytest

from mpsd.mps.heartbeats import STALE_S, Heartbeats

NOW_S = 1000.0
LONG_AGO_S = 1.0


@pytest.fixture
def beats(tmp_path: Path) -> Heartbeats:
    return Heartbeats(tmp_path)


@pytest.mark.parametrize(
    ("ago_s", "is_watched"), [(0.0, True), (STALE_S, True), (STALE_S + 0.1, False), (-5.0, False)]
)
def test_a_gpu_is_watched_while_its_heartbeat_is_young(
    beats: Heartbeats, ago_s: float, *, is_watched: bool
) -> None:
    beats.beat("GPU-0", NOW_S - ago_s)
    assert (beats.why_unwatched(["GPU-0"], LONG_AGO_S, NOW_S) == "") == is_watched


def test_of_several_gpus_the_one_without_a_heartbeat_is_named(beats: Heartbeats) -> None:
    beats.beat("GPU-0", NOW_S)
    assert "GPU-1" in beats.why_unwatched(["GPU-0", "GPU-1"], LONG_AGO_S, NOW_S)


def test_before_anybody_has_scanned_it_has_as_long(beats: Heartbeats) -> None:
    assert beats.why_unwatched(["GPU-0"], NOW_S - 1, NOW_S) == ""
    assert beats.why_unwatched(["GPU-0"], NOW_S - STALE_S - 1, NOW_S)


def test_a_mig_instance_of_an_old_driver_has_one_too(beats: Heartbeats) -> None:
    beats.beat("MIG-GPU-1/7/0", NOW_S)
    assert beats.why_unwatched(["MIG-GPU-1/7/0"], LONG_AGO_S, NOW_S) == ""


def test_whoever_stops_watching_says_so_at_once(beats: Heartbeats, tmp_path: Path) -> None:
    beats.beat("GPU-0", NOW_S)
    beats.end()
    assert beats.why_unwatched(["GPU-0"], LONG_AGO_S, NOW_S)
    assert not list(tmp_path.iterdir())
