"""Containers found by what runtimes keep of them."""

import json
from pathlib import Path

import pytest

from mpsd.containers.users import bundle_users as users

LAUNCHER = "/opt/our-launcher"
OURS = {"poststop": [{"path": LAUNCHER, "args": [LAUNCHER, "--root", "/run/runc", "over"]}]}


def write(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def found(root: Path) -> list[str]:
    return [user.id for user in users(root, LAUNCHER)]


@pytest.mark.parametrize(
    "place", ["run/runc", "run/containerd/runc/default", "run/docker/runtime-runc/moby"]
)
def test_runcs_state_names_the_hook(tmp_path: Path, place: str) -> None:
    write(tmp_path / place / "c1/state.json", {"id": "c1", "config": {"Hooks": OURS}})
    write(tmp_path / place / "c2/state.json", {"id": "c2", "config": {"Hooks": {"poststop": None}}})
    assert found(tmp_path) == ["c1"]


def test_cruns_status_names_the_bundle_which_names_the_hook(tmp_path: Path) -> None:
    write(tmp_path / "run/crun/c1/status", {"pid": 1, "bundle": "/var/bundles/c1"})
    write(tmp_path / "run/crun/c2/status", {"pid": 2, "bundle": "/var/bundles/gone"})
    write(tmp_path / "var/bundles/c1/config.json", {"hooks": OURS})
    assert found(tmp_path) == ["c1"]


def test_a_container_that_two_keep_is_one(tmp_path: Path) -> None:
    write(
        tmp_path / "run/containerd/io.containerd.runtime.v2.task/default/c1/config.json",
        {"hooks": OURS},
    )
    write(tmp_path / "run/containerd/runc/default/c1/state.json", {"config": {"Hooks": OURS}})
    assert found(tmp_path) == ["c1"]


@pytest.mark.parametrize(
    "hooks",
    [
        {"poststop": [{"path": "/usr/bin/mpsd-runtime"}]},
        {
            "poststop": [
                {"path": "/x"},
                {"path": "/usr/bin/python3", "args": ["a", "-ISc", "from mpsd.runtime.main i"]},
            ]
        },
    ],
)
def test_a_launcher_of_another_place_is_known_too(tmp_path: Path, hooks: object) -> None:
    write(tmp_path / "run/runc/c1/state.json", {"config": {"Hooks": hooks}})
    assert found(tmp_path) == ["c1"]


@pytest.mark.parametrize(
    "document",
    [
        [],
        None,
        3,
        {"config": []},
        {"hooks": []},
        {"hooks": {"poststop": {}}},
        {"hooks": {"poststop": [3, {"args": 3}]}},
    ],
)
def test_what_is_of_another_form_has_no_hook(tmp_path: Path, document: object) -> None:
    write(tmp_path / "run/runc/c1/state.json", document)
    assert found(tmp_path) == []


def test_what_is_too_large_or_too_deep_may_use_it(tmp_path: Path) -> None:
    (write(tmp_path / "run/runc/deep/state.json", 1)).write_text("[" * 200_000)
    (write(tmp_path / "run/runc/large/state.json", 1)).write_text(" " * (16 * 1024**2 + 1))
    assert found(tmp_path) == ["deep", "large"]
