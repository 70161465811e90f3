"""Fifty containers come and go at once, while what makes them is killed: the ledger follow the
living.

MPSD_CHAOS_SEED plays another sequence: what each container asks and does, and when something is
killed; what is under way then is the machine's.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from mpsd.platform import local_api
from tests.host.container import Container
from tests.host.host import Host, host_of
from tests.host.sampler import Sampler
from tests.whole.machine.machine import eventually

SEED = int(os.environ.get("MPSD_CHAOS_SEED", "0"))
CONTAINERS = 50
PATIENCE_S = 15  # of a container's user
CARDS = 4
PROMISED_MIB = 14910 - 76  # of a T4, beside what MPS holds itself


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    """Few processes a container, so that memory and threads are what runs out."""
    yield from host_of(f"T4x{CARDS}", domains=[[2, 3]], requests={"clients_per_grant": 2})


class Killer:
    """Kills what makes and ends containers, one process at a time: mpsd-runtime, runc, hooks; and
    `mpsd up` itself."""

    def __init__(self, host: Host, chance: random.Random) -> None:
        self._host = host
        self._chance = chance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill_on, daemon=True)
        self.killed: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _kill_on(self) -> None:
        turn = 0
        while not self._over.wait(self._chance.uniform(0.05, 0.25)):
            turn += 1
            if turn % 12 == 6:
                self._kill_mpsd()
            else:
                self._kill_a_runtime()

    def _kill_mpsd(self) -> None:
        """It is started again, and killed again only when it has served."""
        self._host.part("up").kill()
        self.killed["mpsd up"] += 1
        self._host.service("up")
        eventually(self._answers, "mpsd up answers again")

    def _answers(self) -> bool:
        with suppress(local_api.NotRunning):
            return bool(self._host.node().domains)
        return False

    def _kill_a_runtime(self) -> None:
        """Of the kind that the lot says, if one comes soon: runc and hooks are there for some
        milliseconds only."""
        kind = self._chance.choice(["mpsd-runtime", "runc", "hook"])
        ends = time.monotonic() + 0.5
        while time.monotonic() < ends and not self._over.is_set():
            found = sorted(_runtimes(kind, str(self._host.root), str(self._host.launcher)))
            if found:
                with suppress(ProcessLookupError):
                    os.kill(self._chance.choice(found), signal.SIGKILL)
                    self.killed[kind] += 1
                return


def _runtimes(kind: str, root: str, launcher: str) -> Iterator[int]:
    """The pids of what makes and ends containers under this root now."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            is_launcher = launcher in words
            found = (
                "hook"
                if is_launcher and "over" in words
                else "mpsd-runtime"
                if is_launcher
                else "runc"
            )
            if found == kind and root in words:
                yield int(folder.name)


def lives(container: Container, chance: random.Random) -> None:
    """The container's lives, as one has it who tries again where the killer or a full card was in
    the way."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        if container.create().code == 0:
            container.start()
            time.sleep(chance.uniform(0, 0.5))
            match chance.choice(["stays", "stays", "is deleted", "ends", "ends and is deleted"]):
                case "stays":
                    return
                case "ends":
                    container.kill_outright()
                    return
                case "ends and is deleted":
                    container.kill_outright()
        container.delete(force=True)
        time.sleep(chance.uniform(0.5, 2.5))


def asked(chance: random.Random) -> dict[str, str]:
    """A share of one card, of one card and its threads, or of two cards."""
    gib, card = chance.randint(1, 4), str(chance.randrange(CARDS))
    match chance.choice(["cGPU", "eGPU", "two"]):
        case "cGPU":
            return _cgpu(gib, card)
        case "two":
            return _cgpu(gib, "2,3")
        case _:
            share = {
                "GPU_MEM_PER_DEVICE": str(gib * 2**30),
                "GPU_UTIL_PER_DEVICE": str(chance.randint(10, 60)),
            }
            return {"AMP_VGPU_ENABLE": "1", "NVIDIA_VISIBLE_DEVICES": card} | share


def _cgpu(gib: int, cards: str) -> dict[str, str]:
    return {
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(gib),
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "NVIDIA_VISIBLE_DEVICES": cards,
    }


def living(containers: list[Container]) -> list[str]:
    """Those whose first process runs."""
    return sorted(
        one.name for one in containers if one.status in {"creating", "created", "running", "paused"}
    )


@pytest.mark.timeout(240)
def test_fifty_containers_at_once_under_kills_leave_a_ledger_equal_to_the_living(
    host: Host,
) -> None:
    chance = random.Random(SEED)
    containers = [host.container(asked(chance), "sleep", "1000") for _ in range(CONTAINERS)]
    lots = [random.Random(chance.random()) for _ in containers]
    with Sampler(host) as sampler:
        with (
            Killer(host, random.Random(chance.random())) as killer,
            ThreadPoolExecutor(CONTAINERS) as threads,
        ):
            list(threads.map(lives, containers, lots))
        host.until_ready()

        def held() -> list[str]:
            return sorted(str(grant.container) for grant in host.node().grants)

        eventually(lambda: held() == living(containers), "the ledger is the living containers")
        on_disk = sorted(grant["holder"]["id"] for grant in host.grants_on_disk())
    print(f"seed {SEED}: killed {dict(killer.killed)}, living {living(containers)}")
    print(
        f"looks {sampler.looks}, most {sampler.most_mib} MiB and {sampler.most_percent} % of a card"
    )
    assert on_disk == living(containers)
    assert set(killer.killed) >= {"mpsd up", "mpsd-runtime", "runc"}
    assert 0 < sampler.most_mib <= PROMISED_MIB
    assert 0 < sampler.most_percent <= 100
    # a busy machine leaves time for fewer; what counts is that each of them holds
    assert min(sampler.looks) > 10
    for one in containers:
        one.remove()
    host.until_nothing_reserved()
