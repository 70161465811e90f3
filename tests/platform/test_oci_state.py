"""Which process a runtime's state names as a container's first."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes
from mpsd.platform.containers import StateUnknown, first_process

needs_runc = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("runc") is None, reason="needs runc, and root for it")
HERE = ProcessIdentity(7, 1234, processes.boot_id())


def write(root: Path, name: str, text: str) -> Path:
    (root / "c1").mkdir(parents=True, exist_ok=True)
    path = root / "c1" / name
    path.write_text(text)
    return path


def test_runcs_state_names_it(tmp_path: Path) -> None:
    write(tmp_path, "state.json", '{"id":"c1","init_process_pid":7,"init_process_start":1234,"config":{"rootfs":"/"}}')
    assert first_process(str(tmp_path), "c1") == HERE


def test_cruns_status_names_it(tmp_path: Path) -> None:
    write(tmp_path, "status", '{"pid":7,"process-start-time":1234,"cgroup-path":"/c1","bundle":"/b"}')
    assert first_process(str(tmp_path), "c1") == HERE


def test_a_container_that_its_runtime_does_not_know_has_none(tmp_path: Path) -> None:
    assert first_process(str(tmp_path), "c1") is None
    assert first_process(str(tmp_path / "gone"), "c1") is None
    (tmp_path / "c1").mkdir()
    assert first_process(str(tmp_path), "c1") is None
    write(tmp_path, "state.json", '{"init_process_pid":0,"init_process_start":0}')
    assert first_process(str(tmp_path), "c1") is None


@pytest.mark.parametrize("root", ["file", "file/below", "loop", "x" * 256, "x/" * 4096])
def test_where_no_folder_can_be_there_is_no_container(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert first_process(f"{tmp_path}/{root}", "c") is None


def test_a_name_that_is_too_long_for_a_folder_is_no_containers(tmp_path: Path) -> None:
    assert first_process(str(tmp_path), "x" * 256) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"init_process_pid":"7"}', '{"init_process_pid":7}', "\0" * 100])
def test_a_state_of_another_form_is_unknown_and_not_gone(tmp_path: Path, text: str) -> None:
    write(tmp_path, "state.json", text)
    with pytest.raises(StateUnknown, match=r"c1/state\.json is not understood"):
        first_process(str(tmp_path), "c1")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    real = write(tmp_path / "elsewhere", "state.json", '{"init_process_pid":7,"init_process_start":1234}')
    (tmp_path / "c1").symlink_to(real.parent)
    with pytest.raises(StateUnknown):
        first_process(str(tmp_path), "c1")
    (tmp_path / "c1").unlink()
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1" / "state.json").symlink_to(real)
    with pytest.raises(StateUnknown):
        first_process(str(tmp_path), "c1")


def test_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "c1").mkdir()
    os.mkfifo(tmp_path / "c1" / "state.json")
    with pytest.raises(StateUnknown, match="is no file of at most"):
        first_process(str(tmp_path), "c1")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    os.truncate(write(tmp_path, "state.json", ""), 1024**3)
    with pytest.raises(StateUnknown, match="is no file of at most"):
        first_process(str(tmp_path), "c1")


def test_what_others_may_write_is_not_believed(tmp_path: Path) -> None:
    path = write(tmp_path, "state.json", '{"init_process_pid":7,"init_process_start":1234}')
    path.chmod(0o666)
    with pytest.raises(StateUnknown, match="may be written by others"):
        first_process(str(tmp_path), "c1")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_what_is_another_users_is_not_believed(tmp_path: Path) -> None:
    os.chown(write(tmp_path, "state.json", '{"init_process_pid":7,"init_process_start":1234}'), 65534, 65534)
    with pytest.raises(StateUnknown, match="may be written by others"):
        first_process(str(tmp_path), "c1")


@needs_runc
def test_a_real_runc_names_its_containers_first_process(tmp_path: Path) -> None:
    bundle, root, name = tmp_path / "bundle", tmp_path / "root", f"mpsd-state-{os.getpid()}"
    (bundle / "rootfs" / "usr").mkdir(parents=True)
    subprocess.run(["runc", "spec", "--bundle", str(bundle)], check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["process"] |= {"terminal": False, "args": ["/usr/bin/sleep", "600"]}
    config["mounts"].append({"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]})
    for link in ("bin", "lib", "lib64"):
        (bundle / "rootfs" / link).symlink_to(f"usr/{link}")
    (bundle / "config.json").write_text(json.dumps(config))
    runc = ["runc", "--root", str(root)]
    assert first_process(str(root), name) is None
    created = subprocess.run(
        [*runc, "create", "--bundle", str(bundle), name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert created.returncode == 0
        found = first_process(str(root), name)
        assert found
        assert processes.identity_of(found.pid) == found
    finally:
        subprocess.run([*runc, "delete", "--force", name], check=True)
    assert first_process(str(root), name) is None
