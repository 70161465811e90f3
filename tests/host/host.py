"""One machine with simulated GPUs and `mpsd up`, whose containers are real: runc's, by way of
mpsd-runtime.

One rule: nothing of a test is left: no container, process, cgroup, mount or folder; and at its end
nothing is reserved.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import mpsd
from mpsd.containers.engines import launcher
from mpsd.model.node_report import DomainReport, GrantReport
from mpsd.platform import local_api
from tests.host.bundle import make_bundle
from tests.host.container import Container, Ended, ended
from tests.whole.machine.machine import MPSD, Line, Machine, eventually

_CGROUPS = Path("/sys/fs/cgroup")
# from a card's ordinal to the MiB and the percent that are granted of it
HeldGpus = Mapping[int, tuple[int, int]]


class Host(Machine):
    """Its run directory, limits and cards, with nothing running yet."""

    def __init__(
        self, gpus: str, *, cards: Sequence[Mapping[str, Any]] = (), **policy: Any
    ) -> None:
        """cards: rows that gpus.yaml has beside its own. policy: what the policy has beside the
        machine's own."""
        super().__init__(gpus, cards=cards)
        self.set_policy(**policy)
        self._groups = policy.get("domains", [])
        self._plain = True  # its domains are known here
        self._containers: list[Container] = []
        self._made = 0
        self.root = self._folder / "r"
        self.runtime_log = self._folder / "runtime.log"
        self.launcher = self.write_launcher("mpsd-runtime")

    def write_launcher(self, name: str, next_runtime: str = "") -> Path:
        """What `mpsd install` writes; next_runtime: empty where mpsd-runtime finds it itself."""
        home = str(Path(mpsd.__file__).parents[1])
        text = launcher.launcher(
            sys.executable, home, str(self.run_directory), next_runtime, str(self.runtime_log)
        )
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    @property
    def folder(self) -> Path:
        """Everything of it."""
        return self._folder

    # -- containers

    @property
    def cgroup(self) -> str:
        """Whose cgroup the containers of this machine are in, from the top of each hierarchy."""
        return f"/mpsd-host-{self._folder.name}"

    def container(
        self, environment: Mapping[str, str], *command: str, name: str = "", host_ipc: bool = False
    ) -> Container:
        """A bundle, and nothing created of it yet. command: what it runs, sim-cuda that holds a
        context for none."""
        self._made += 1
        name = name or f"c{self._made}"
        folder = self._folder / name
        words = command or ("sim-cuda", "info", "hold")
        bundle = make_bundle(folder, f"{self.cgroup}/{name}", environment, words, host_ipc=host_ipc)
        made = Container(self.launcher, self.root, name, bundle, self.environment)
        self._containers.append(made)
        return made

    def holding(self, environment: Mapping[str, str], *actions: str, name: str = "") -> Container:
        """A container whose sim-cuda has done its actions and holds its context."""
        return self.container(environment, "sim-cuda", *actions, "info", "hold", name=name).held()

    def ran(self, environment: Mapping[str, str], *command: str) -> Ended:
        """What came of `run` for this command, once it has ended; the container is gone."""
        made = self.container(environment, *command)
        done = made.run()
        assert made.status == "", made
        return done

    def ran_as_it_was(self, environment: Mapping[str, str]) -> None:
        """Fails unless a container with this environment is started as by runc alone, and its user
        is told nothing."""
        made = self.container(environment, "env")
        before = (made.bundle.folder / "config.json").read_bytes()
        done = made.run()
        assert (done.code, done.errors) == (0, ""), done
        there = dict(line.split("=", 1) for line in done.output.splitlines())
        assert there == {"HOME": "/root", **made.bundle.environment}
        assert (made.bundle.folder / "config.json").read_bytes() == before
        assert {event["event"] for event in self.runtime_events if event["id"] == made.name} <= {
            "asked",
            "off",
        }
        self.nothing_reserved()

    def remove_containers(self) -> None:
        """Also what is left in their cgroups of those that were never made to the end."""
        while self._containers:
            gone = self._containers.pop()
            gone.remove()
            # what is removed now must not reach through one of them
            assert mounts_below(gone.bundle.folder) == []
            shutil.rmtree(gone.bundle.folder)
        for procs in _CGROUPS.glob(f"*{self.cgroup}/**/cgroup.procs"):
            for pid in procs.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    @property
    def runtime_events(self) -> list[Line]:
        """What mpsd-runtime has logged, the oldest first."""
        with suppress(FileNotFoundError):
            return [json.loads(line) for line in self.runtime_log.read_text().splitlines()]
        return []

    # -- mpsd

    def asked(self, *words: str) -> Ended:
        """`mpsd WORDS`, once it has ended."""
        return ended([MPSD, *words], self.environment)

    def status(self) -> Mapping[str, Any]:
        """`mpsd status -o json`."""
        done = self.asked("status", "-o", "json")
        assert done.code == 0, done
        found: Mapping[str, Any] = json.loads(done.output)
        return found

    @property
    def ledger(self) -> HeldGpus:
        """Card by card, as mpsd says."""
        return {
            ordinal: (gpu.granted_mib, gpu.granted_percent)
            for ordinal, gpu in enumerate(self.node().gpus)
        }

    def granted_to(self, container: Container) -> GrantReport:
        """The grant of this container, which it must have."""
        (found,) = (grant for grant in self.node().grants if grant.container == container.name)
        return found

    def until_nothing_reserved(self) -> None:
        """Until the ledger is at zero, by mpsd's word and on disk."""
        self.until_no_grants()
        assert set(self.ledger.values()) == {(0, 0)}
        eventually(lambda: not self.grants_on_disk(), "no grant is left on disk")

    def nothing_reserved(self) -> None:
        """Fails unless the ledger is at zero now, by `mpsd status -o json` and on disk."""
        status = self.status()
        assert status["grants"] == []
        assert {(gpu["grantedMiB"], gpu["grantedPercent"]) for gpu in status["gpus"]} == {(0, 0)}
        assert self.grants_on_disk() == []

    def grants_on_disk(self) -> list[Mapping[str, Any]]:
        found = []
        for path in (self.run_directory / "grants").glob("*.json"):
            with suppress(FileNotFoundError):  # it was given back meanwhile
                found.append(json.loads(path.read_text()))
        return found

    def _domains_of(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """As the policy groups its cards."""
        alone = [
            [gpu.ordinal]
            for gpu in self.simulation.gpus
            if not any(gpu.ordinal in one for one in self._groups)
        ]
        for group in (*self._groups, *alone):
            yield (
                "gpu" + "-".join(map(str, group)),
                tuple(self.simulation.gpus[ordinal].uuid for ordinal in group),
            )

    def _known(self) -> Sequence[DomainReport]:
        """The domains, once they hold every GPU."""
        with suppress(local_api.NotRunning):
            domains = self.node().domains
            return (
                domains
                if sum(len(one.gpus) for one in domains) == len(self.simulation.gpus)
                else ()
            )
        return ()

    # -- the end

    def stop(self) -> None:
        self.remove_containers()
        super().stop()

    def destroy(self) -> None:
        self.remove_containers()
        assert mounts_below(self._folder) == []
        super().destroy()
        remove_cgroup(self.cgroup)


def host_of(gpus: str, *, cards: Sequence[Mapping[str, Any]] = (), **policy: Any) -> Iterator[Host]:
    """One that serves; its end fails where anything of it is left. cards, policy: as Host has
    them."""
    made = Host(gpus, cards=cards, **policy)
    try:
        made.up()
        yield made
        made.stop()
    finally:
        made.destroy()


def mounts_below(folder: Path) -> list[str]:
    """The mounts of this machine that are in a folder."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in places if Path(place).is_relative_to(folder)]


def remove_cgroup(cgroup: str, within_s: float = 5) -> None:
    """In every hierarchy; one whose last process is about to end is waited for."""
    ends = time.monotonic() + within_s
    for hierarchy in [_CGROUPS, *_CGROUPS.iterdir()]:
        top = hierarchy / cgroup.lstrip("/")
        for folder in sorted((Path(found[0]) for found in os.walk(top)), reverse=True):
            while folder.is_dir():
                try:
                    folder.rmdir()
                except OSError:
                    assert time.monotonic() < ends, f"{folder} is in use"
                    time.sleep(0.02)
