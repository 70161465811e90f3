"""`mpsd uninstall` of an engine: everything as it was, and not while containers use it."""

import json
import os
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest

from mpsd.model.node_report import GrantReport, NodeReport
from mpsd.platform.processes import identity_of
from tests.cli.asking import Done, ask
from tests.cli.test_install import ENGINES, LAUNCHER, install, tree, write
from tests.cli.test_install import root as root
from tests.host.bundle import make_bundle


def uninstall(root: Path, *words: str) -> Done:
    return ask("uninstall", *words, "--root", str(root))


@contextmanager
def mpsd_up(socket: Path, *grants: GrantReport) -> Iterator[None]:
    """Answers GET /v1/node as mpsd up does, with these grants."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = msgspec.json.encode(NodeReport(grants=grants, clients=()))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *words: object) -> None:
            pass

    socket.parent.mkdir(parents=True, exist_ok=True)
    with socketserver.UnixStreamServer(str(socket), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
    socket.unlink()


@pytest.mark.parametrize("engine", ENGINES)
def test_installed_and_uninstalled_no_file_is_another_than_before(root: Path, engine: str) -> None:
    before = tree(root)
    assert install(root, engine).returncode == 0
    assert tree(root) != before
    done = uninstall(root, engine)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(root) == before


def test_the_launcher_stays_for_another_engine_and_goes_with_the_last(root: Path) -> None:
    install(root, "docker")
    install(root, "podman")
    assert "(the launcher, which podman needs): unchanged" in uninstall(root, "docker").stdout
    assert (root / LAUNCHER).exists()
    assert "(the launcher): removed" in uninstall(root, "podman").stdout
    assert not (root / LAUNCHER).exists()


def test_a_dry_run_shows_the_difference_and_changes_nothing(root: Path) -> None:
    install(root, "containerd")
    before = tree(root)
    done = uninstall(root, "containerd", "--dry-run")
    assert '-    BinaryName = "/usr/local/bin/mpsd-runtime"' in done.stdout
    assert "systemctl restart containerd" in done.stdout
    assert tree(root) == before


def grant(name: str, command: str, container: str = "", container_name: str = "") -> GrantReport:
    return GrantReport(id=name, command=command, container=container, container_name=container_name)


OF_PROGRAM = grant("8f52631f0ba6", "python")
HELD = (grant("f46b9821f5ad", "x", "3f4e" * 16, "train"), OF_PROGRAM)


def test_d5_while_containers_use_it_nothing_is_changed_and_they_are_named(root: Path) -> None:
    install(root, "docker")
    before = tree(root)
    with mpsd_up(root / "run/mpsd/mpsd.sock", *HELD):
        done = uninstall(root, "docker")
        machines = uninstall(root, "docker", "-o", "json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "refused: 1 container uses mpsd" in done.stderr
    assert f"{'3f4e' * 16} (train): holds grant f46b9821f5ad of mpsd up" in done.stderr
    assert "--force: they keep running with their limits" in done.stderr
    assert machines.returncode == 1
    assert [user["name"] for user in json.loads(machines.stdout)["users"]] == ["train"]
    assert tree(root) == before


def test_force_says_what_it_costs_and_does_it(root: Path) -> None:
    before = tree(root)
    install(root, "docker")
    with mpsd_up(root / "run/mpsd/mpsd.sock", *HELD):
        done = uninstall(root, "docker", "--force")
    assert done.returncode == 0
    assert "they keep running with their limits" in done.stderr
    assert "(train)" in done.stderr
    assert tree(root) == before


@pytest.mark.parametrize(
    "place",
    [
        "run/containerd/io.containerd.runtime.v2.task/default/c1/config.json",
        "run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/c1/config.json",
    ],
)
def test_without_mpsd_up_they_are_known_by_the_hook_in_their_bundle(root: Path, place: str) -> None:
    install(root, "docker")
    hook = {"path": "/usr/local/bin/mpsd-runtime", "args": ["mpsd-runtime", "over"]}
    write(root / place, json.dumps({"hooks": {"poststop": [hook]}}))
    write(
        root / "run/containerd/io.containerd.runtime.v2.task/default/c2/config.json",
        '{"hooks": {}}',
    )
    done = uninstall(root, "docker")
    assert done.returncode == 1
    assert f"  c1: {root / place}" in done.stderr
    assert "c2" not in done.stderr


def test_without_mpsd_up_its_ledger_names_those_that_live(root: Path) -> None:
    install(root, "docker")
    ours = identity_of(os.getpid())
    assert ours
    for name, process in (
        ("alive", ours),
        ("ended", replace(ours, start_ticks=ours.start_ticks + 1)),
    ):
        holder = {
            "root": "/run/elsewhere",
            "id": name,
            "name": "train",
            "process": asdict(process),
            "is_made": True,
        }
        text = json.dumps({"id": f"grant-{name}", "domain": "gpu0", "holder": holder})
        write(root / f"run/mpsd/grants/grant-{name}.container.json", text)
    write(root / "run/mpsd/grants/grant-of-a-program.json", "{}")
    done = uninstall(root, "docker")
    assert done.returncode == 1
    assert "  alive (train): holds grant grant-alive" in done.stderr
    assert "grant-ended" not in done.stderr


def test_a_bundle_that_cannot_be_read_may_use_it(root: Path) -> None:
    install(root, "docker")
    write(
        root / "run/containerd/io.containerd.runtime.v2.task/default/c1/config.json", '{"hooks": '
    )
    done = uninstall(root, "docker")
    assert done.returncode == 1
    assert "so it may use mpsd" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runc"), reason="needs root and runc")
def test_a_container_of_real_runc_is_named_until_it_is_deleted(root: Path) -> None:
    install(root, "podman")
    name = f"mpsd-uninstall-{os.getpid()}"
    bundle = make_bundle(root / "bundle", f"/{name}", {}, ["/usr/bin/sleep", "60"])
    hook = {
        "path": str(root / LAUNCHER),
        "args": [str(root / LAUNCHER), "--root", "/run/runc", "over"],
    }
    bundle.rewrite({**bundle.config, "hooks": {"poststop": [hook]}})
    runc = ["runc", "--root", str(root / "run/runc")]
    command = [*runc, "create", "--bundle", str(bundle.folder), name]
    subprocess.run(
        command, check=True, timeout=30, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        done = uninstall(root, "podman")
        assert done.returncode == 1
        assert f"  {name}: {root / 'run/runc' / name / 'state.json'}" in done.stderr
    finally:
        subprocess.run([*runc, "delete", "--force", name], check=True, timeout=30)
    assert uninstall(root, "podman").returncode == 0
