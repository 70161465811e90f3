"""`mpsd install` on folders that stand for /, and what real engines say of the files."""

import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from tests.cli.asking import Done, ask
from tests.host.engines import libraries_of
from tests.world.captured import captured

LAUNCHER = "usr/local/bin/mpsd-runtime"
DOCKER, CONTAINERD = "etc/docker/daemon.json", "etc/containerd/config.toml"
PODMAN = "etc/containers/containers.conf.d/mpsd.conf"
ENGINES = {"docker": DOCKER, "containerd": CONTAINERD, "podman": PODMAN}
DAEMON_JSON = (
    '{\n    "log-driver": "json-file",\n    "runtimes": {\n        "kata": {"path": "/opt/kata"}\n '
    "   }\n}\n"
)
CONFIG_TOML = """version = 2

# managed by the night shift
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"  # Debian's
"""


def install(root: Path, *words: str) -> Done:
    return ask("install", *words, "--root", str(root))


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / DOCKER, DAEMON_JSON)
    write(tmp_path / CONTAINERD, CONFIG_TOML)
    return tmp_path


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dry_run_shows_every_difference_and_changes_nothing(root: Path, engine: str) -> None:
    before = tree(root)
    done = install(root, engine, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(root) == before
    assert f"{root / LAUNCHER} (the launcher): would be written\n--- /dev/null\n" in done.stdout
    assert f"+++ {root / ENGINES[engine]}\n" in done.stdout


def test_what_is_to_be_run_then_is_said(root: Path) -> None:
    assert "now run: systemctl reload docker\n" in install(root, "docker").stdout
    assert "now run: systemctl restart containerd\n" in install(root, "containerd").stdout
    assert "nothing needs a restart" in install(root, "podman").stdout


def test_the_file_as_it_was_lies_beside_it_with_its_owner_and_mode(root: Path) -> None:
    (root / DOCKER).chmod(0o640)
    if os.geteuid() == 0:
        os.chown(root / DOCKER, 12345, 23456)
    was = (root / DOCKER).stat()
    assert f"backup: {root / DOCKER}.before-mpsd" in install(root, "docker").stdout
    kept = root / f"{DOCKER}.before-mpsd"
    assert kept.read_text() == DAEMON_JSON
    for path in (kept, root / DOCKER):
        now = path.stat()
        assert (stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid) == (
            0o640,
            was.st_uid,
            was.st_gid,
        )
    assert sorted(path.name for path in (root / DOCKER).parent.iterdir()) == [
        "daemon.json",
        "daemon.json.before-mpsd",
    ]


def test_an_earlier_backup_is_not_overwritten(root: Path) -> None:
    earlier = write(root / f"{DOCKER}.before-mpsd", '{"of": "another year"}')
    record = json.loads(install(root, "docker", "-o", "json").stdout)
    kept = Path(record["changes"][1]["backup"])
    assert kept.name.startswith("daemon.json.before-mpsd.2")
    assert kept.read_text() == DAEMON_JSON
    assert earlier.read_text() == '{"of": "another year"}'


def test_the_launcher_is_a_program_that_knows_what_was_chosen(root: Path) -> None:
    chosen = ("--next", "/usr/bin/true", "--log", "/var/log/other.log", "--run-dir", "/run/other")
    assert install(root, "docker", *chosen).returncode == 0
    assert stat.S_IMODE((root / LAUNCHER).stat().st_mode) == 0o755
    shown = captured([root / LAUNCHER, "--help-mpsd"])
    for said in ("(now: /usr/bin/true)", "(now: /run/other)", "(now: /var/log/other.log)"):
        assert said in shown.stdout


def test_a_link_is_followed_and_stays_one(root: Path) -> None:
    real = write(root / "srv/daemon.json", DAEMON_JSON)
    (root / DOCKER).unlink()
    (root / DOCKER).symlink_to("../../srv/daemon.json")
    done = install(root, "docker")
    assert f"{root / DOCKER} is a link, and stays one: {real} is the file" in done.stdout
    assert (root / DOCKER).is_symlink()
    assert "mpsd" in json.loads(real.read_text())["runtimes"]
    assert (root / "srv/daemon.json.before-mpsd").read_text() == DAEMON_JSON


def test_a_link_that_leads_out_or_nowhere_is_refused(root: Path) -> None:
    (root / DOCKER).unlink()
    for target, said in (("/etc/hostname", "out of"), ("nowhere.json", "is not there")):
        (root / DOCKER).symlink_to(target)
        done = install(root, "docker")
        assert done.returncode == 2
        assert said in done.stderr
        (root / DOCKER).unlink()
    assert not (root / LAUNCHER).exists()


@pytest.mark.parametrize(
    ("file", "text", "engine", "said"),
    [
        (DOCKER, '{"runtimes": {"mpsd": {"path": "/opt/x"}}}', "docker", "or name it: --to /opt/x"),
        (PODMAN, "[engine.runtimes]\nmpsd = ['/opt/x']\n", "podman", "--to /opt/x"),
        (LAUNCHER, "#!/bin/sh\nexec runc\n", "docker", "is not a launcher of mpsd; move it away"),
    ],
)
def test_what_is_not_ours_is_refused_with_a_remedy_and_stays(
    root: Path, file: str, text: str, engine: str, said: str
) -> None:
    write(root / file, text)
    before = tree(root)
    done = install(root, engine)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert tree(root) == before


def test_a_launcher_that_others_could_replace_is_refused(root: Path) -> None:
    (root / "usr/local/bin").mkdir(parents=True)
    (root / "usr/local/bin").chmod(0o777)
    done = install(root, "docker")
    assert done.returncode == 2
    assert f"{root}/usr/local/bin: may be written by everybody" in done.stderr
    assert f"chmod o-w {root}/usr/local/bin" in done.stderr
    assert not (root / LAUNCHER).exists()


@pytest.mark.parametrize("words", [("--to", "/a/../b"), ("--next", "runc")])
def test_a_path_that_is_not_whole_is_misuse(root: Path, words: tuple[str, str]) -> None:
    assert install(root, "docker", *words).returncode == 2


def test_machines_get_what_would_be_done_and_what_was(root: Path) -> None:
    would = json.loads(install(root, "docker", "--dry-run", "-o", "json").stdout)
    did = json.loads(install(root, "docker", "-o", "json").stdout)
    assert (would["dry_run"], would["changed"]) == (True, False)
    assert (did["dry_run"], did["changed"]) == (False, True)
    assert would["changes"] == did["changes"]
    assert [change["action"] for change in did["changes"]] == ["create", "change"]
    assert did["to_do"] == ["systemctl reload docker"]
    again = json.loads(install(root, "docker", "-o", "json").stdout)
    assert (again["changed"], again["to_do"]) == (False, [])


# -- what the engines say


def engine_program(name: str) -> str:
    more = os.environ.get("MPSD_HOST_PROGRAMS", str(Path.home() / ".cache/mpsd-host"))
    found = shutil.which(
        name,
        path=os.pathsep.join(
            [os.environ["PATH"], "/usr/sbin", f"{more}/usr/sbin", f"{more}/usr/bin"]
        ),
    )
    return found or pytest.skip(f"{name} is not here; tests/host/programs.sh fetches Debian's")


def dumped(config: Path) -> str:
    command = [engine_program("containerd"), "--config", str(config), "config", "dump"]
    return captured(command).stdout


@pytest.mark.parametrize(
    "text",
    [
        CONFIG_TOML,
        None,
        '[plugins.cri.containerd.runtimes.kata]\nruntime_type = "io.containerd.kata.v2"\n',
    ],
    ids=["comments", "no-file", "version-1"],
)
def test_containerd_knows_the_runtime_and_no_other_is_lost(root: Path, text: str | None) -> None:
    if text is None:
        (root / CONTAINERD).unlink()
    else:
        write(root / CONTAINERD, text)
    assert install(root, "containerd").returncode == 0
    said = dumped(root / CONTAINERD)
    at = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes'
    options = said.partition(f"[{at}.mpsd.options]\n")[2]
    assert options.split("\n")[0].strip() == 'BinaryName = "/usr/local/bin/mpsd-runtime"'
    assert f"[{at}.{'kata' if text and 'kata' in text else 'runc'}]" in said


def test_dockerd_takes_the_file(root: Path) -> None:
    assert install(root, "docker").returncode == 0
    command = [engine_program("dockerd"), "--validate", "--config-file", str(root / DOCKER)]
    done = captured(command, check=False)
    if "flag" in done.stderr:
        pytest.skip(f"this dockerd has no --validate: {done.stderr}")
    assert (done.returncode, "configuration OK" in done.stderr) == (0, True), done.stderr


def test_podman_knows_the_runtime(tmp_path: Path) -> None:
    podman, conmon, runc = (engine_program(name) for name in ("podman", "conmon", "runc"))
    to, config = tmp_path / "mpsd-runtime", tmp_path / "mpsd.conf"
    done = ask("install", "podman", "--to", str(to), "--config", str(config))
    assert f"mpsd uninstall podman --to {to} --config {config}" in done.stdout
    # nothing is left in /dev/shm
    write(tmp_path / "all.conf", config.read_text() + '[engine]\nlock_type = "file"\n')
    shown = "{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}"
    asked = ["--runtime", "mpsd", "info", "--format", shown]
    environment = os.environ | {
        "CONTAINERS_CONF": str(tmp_path / "all.conf"),
        "HOME": str(tmp_path),
        "LD_LIBRARY_PATH": libraries_of(podman),
        "PATH": f"{os.environ['PATH']}:{Path(runc).parent}",
    }
    with tempfile.TemporaryDirectory() as short:  # podman takes no more than 50 characters
        own = [f"--{name}={short}/{name}" for name in ("root", "runroot", "tmpdir")]
        command = [podman, "--conmon", conmon, "--storage-driver", "vfs", *own, *asked]
        answer = captured(command, env=environment, check=False)
    assert (answer.returncode, answer.stdout) == (0, f"mpsd {to}\n"), answer.stderr
