"""B5 and D5: mpsd is upgraded while containers run, and is not uninstalled while they do. Real
runc, its own root."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.container import Container, Ended
from tests.host.host import Host, host_of

ASKS = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    yield from host_of("T4")


class Installed:
    """The runtime in a docker's file of its own; the launcher is another than the host's, and does
    the same."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._host = host
        self._config = folder / "daemon.json"
        self._to = folder / "mpsd-runtime"
        self._config.write_text('{"debug": true}\n')

    def install(self) -> Ended:
        return self._ask("install", "--log", str(self._host.runtime_log))

    def uninstall(self, *words: str) -> Ended:
        return self._ask("uninstall", *words)

    @property
    def paths(self) -> tuple[Path, Path]:
        return self._to, self._config

    def _ask(self, verb: str, *words: str) -> Ended:
        places = ("--to", str(self._to), "--config", str(self._config))
        return self._host.asked(
            verb, "docker", *places, "--run-dir", str(self._host.run_directory), *words
        )


@pytest.fixture
def installed(host: Host, tmp_path: Path) -> Installed:
    made = Installed(host, tmp_path)
    assert made.install().code == 0
    return made


@pytest.fixture
def train(host: Host, installed: Installed) -> Container:
    """A container that computes, made by the launcher that was installed."""
    host.launcher, before = installed.paths[0], host.launcher
    try:
        return host.holding(ASKS, "alloc=1024")
    finally:
        host.launcher = before


def test_b5_a_hot_upgrade_loses_no_container(
    host: Host, installed: Installed, train: Container
) -> None:
    launcher, config = installed.paths
    held, pid, text = host.granted_to(train), train.pid, config.read_text()
    launcher.write_text(launcher.read_text() + "# of an older version\n")
    again = installed.install()
    assert f"{launcher} (the launcher): changed" in again.output
    assert f"{config} (docker's configuration): unchanged" in again.output
    assert config.read_text() == text
    host.part("up").kill()
    host.up()
    now = host.granted_to(train)
    assert (now.id, now.memory_mib, now.clients, train.pid) == (held.id, held.memory_mib, 1, pid)


def test_d5_uninstalling_fails_while_a_container_uses_it(
    host: Host, installed: Installed, train: Container
) -> None:
    before = [path.read_bytes() for path in installed.paths]
    refused = installed.uninstall()
    assert (refused.code, refused.output) == (1, "")
    assert f"  {train.name}: holds grant {host.granted_to(train).id} of mpsd up" in refused.errors
    assert [path.read_bytes() for path in installed.paths] == before
    train.delete(force=True)
    assert installed.uninstall().code == 0
    launcher, config = installed.paths
    assert not launcher.exists()
    assert config.read_text() == '{"debug": true}\n'
