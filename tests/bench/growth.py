"""Whether the watchdog grows: it looks as often as it can, while clients come, go, change their
memory and are killed.

The watchdog, its scanner and its ledger are those of `mpsd up`, alone in this process, without the
pauses between their looks. MPSD_LOOKS says how many; a day of the watchdog is 345 600. A slope is a
least-squares line; the samples of the first looks are left out, while caches of bounded length
fill.
"""

import asyncio
import itertools
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from statistics import linear_regression

import psutil

from mpsd.grants.ledger import LocalGrants
from mpsd.model.grants import Grant
from mpsd.mps.records import DomainRecords
from mpsd.platform.event_loop import until
from mpsd.platform.logs import be_silent, logger
from mpsd.simulator.card import MPS_CLIENT, ContextClaim
from mpsd.simulator.gpus import MIB
from mpsd.watchdog import watchdog as room
from mpsd.watchdog.watchdog import Watchdog
from tests.bench.rows import Row
from tests.bench.watchdog import GRANTED_MIB, SimulatedGpus, start_client

LOOKS = int(os.environ.get("MPSD_LOOKS", "60000"))
GPUS, CLIENTS_A_GPU, SAMPLES = 2, 4, 80
FILLED = 35_000  # looks, from which on they count
MEMORY_EVERY, COMES_EVERY, KILLED_EVERY = 5, 100, 1000  # looks
MOST_KIB, MOST_DESCRIPTORS = 1024.0, 0.5  # for 100 000 looks
_LONG_S = 600.0


def growth() -> Iterator[tuple[str, Row]]:
    """Memory and descriptors that the watchdog has more after 100 000 looks."""
    be_silent()
    with tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder, ExitStack() as stack:
        yield from asyncio.run(_Crowd(Path(folder), stack).measured()).items()


def _has_looked(watching: Watchdog, before: int) -> bool:
    return watching.report().node.looks > before


class _Crowd:
    """Clients that come and go."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._gpus = SimulatedGpus(folder, GPUS, stack)
        self._ledger = LocalGrants(self._gpus.settings.grants, lambda: None, logger())
        self._cards = [self._gpus.machine.card(gpu.ordinal) for gpu in self._gpus.node.gpus]
        # with its GPU and its slot
        self._clients: deque[tuple[subprocess.Popen[bytes], Grant, int, int]] = deque()
        self._numbers, self._random = itertools.count(), Random(0)
        for card in self._cards:
            stack.callback(card.close)
        stack.callback(self._end_all)

    async def measured(self) -> dict[str, Row]:
        self._ledger.load()
        for _ in range(GPUS * CLIENTS_A_GPU):
            self._come()
        policy, domains = (
            self._gpus.policy,
            DomainRecords(self._gpus.settings.run_directory, logger()),
        )
        watching = Watchdog(
            self._gpus.settings, self._gpus.node, lambda: policy, self._ledger, domains
        )
        pauses, room.SCAN_S, room._MIN_PAUSE_S = (room.SCAN_S, room._MIN_PAUSE_S), 0.0, 0.0
        stop = asyncio.Event()
        running = asyncio.create_task(watching.run(stop))
        try:
            looks, kib, descriptors = await self._samples(watching)
        finally:
            stop.set()
            await running
            room.SCAN_S, room._MIN_PAUSE_S = pauses
            self._ledger.close()
        killed = sum(one.ended for one in watching.report().node.counts)
        assert killed, "some were killed"
        per = [linear_regression(looks, values).slope * 100_000 for values in (kib, descriptors)]
        came = next(self._numbers)
        about = (
            f"more after 100 000 looks, by {looks[-1]} looks; {came} clients came, {killed} were"
            " killed"
        )
        return {
            "growth_memory": Row(per[0], "KiB", MOST_KIB, None, f"the watchdog, resident, {about}"),
            "growth_descriptors": Row(
                per[1], "", MOST_DESCRIPTORS, None, "the same, open descriptors"
            ),
        }

    async def _samples(self, watching: Watchdog) -> tuple[list[int], list[float], list[int]]:
        me, samples, seen = psutil.Process(), [], 0
        while (now := watching.report().node.looks) < LOOKS:
            for every, change in (
                (MEMORY_EVERY, self._change),
                (COMES_EVERY, self._replace),
                (KILLED_EVERY, self._lift),
            ):
                for _ in range(now // every - seen // every):
                    change()
            if now >= FILLED and now * SAMPLES // LOOKS > seen * SAMPLES // LOOKS:
                samples.append((now, me.memory_info().rss / 1024, me.num_fds()))
            seen = now
            await until(partial(_has_looked, watching, seen), _LONG_S, "it looks", 0)
        return [one[0] for one in samples], [one[1] for one in samples], [one[2] for one in samples]

    def _come(self) -> None:
        number = next(self._numbers)
        gpu = self._gpus.node.gpus[number % GPUS]
        process, grant = start_client(
            self._gpus.machine, gpu, self._ledger, f"client-{number}", ["/bin/sleep", "6000"]
        )
        slot = self._cards[gpu.ordinal].claim(ContextClaim(process.pid, MPS_CLIENT, 1024 * MIB))
        self._clients.append((process, grant, gpu.ordinal, slot))

    def _replace(self) -> None:
        """The one that has been there longest goes, if the watchdog has not ended it, and another
        comes."""
        process, grant, ordinal, slot = self._clients.popleft()
        process.kill()
        process.wait()
        self._cards[ordinal].release(slot, process.pid)
        self._ledger.end(grant)
        self._come()

    def _change(self) -> None:
        _process, _grant, ordinal, slot = self._random.choice(self._clients)
        card = self._cards[ordinal]
        card.add(slot, MIB * (64 if card.held_bytes(slot) < 1500 * MIB else -64))

    def _lift(self) -> None:
        """The newest takes more than its grant."""
        _process, _grant, ordinal, slot = self._clients[-1]
        self._cards[ordinal].add(slot, 2 * GRANTED_MIB * MIB)

    def _end_all(self) -> None:
        while self._clients:
            process, grant, _ordinal, _slot = self._clients.popleft()
            process.kill()
            process.wait()
            self._ledger.end(grant)
