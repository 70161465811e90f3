"""Records of grants, damaged in whatever way: nobody is ended who proves its grant, and nothing is
given twice.

The ledger, the scanner, the watchdog and its judgement as they run, on simulated GPUs; the clients
are processes that sleep. Every violation would end its process.
"""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpsd.agent.rules.decide import Admit, decide
from mpsd.grants.kept import ProgramGrant
from mpsd.grants.ledger import GrantableGpus, LocalGrants
from mpsd.model.client_limits import ClientLimit, environment
from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES
from mpsd.model.grants import Gpu, Grant, evenly
from mpsd.model.node_report import ViolationsReport
from mpsd.model.node_view import DomainView, LedgerView
from mpsd.model.policy import Response
from mpsd.mps.node_gpus import Node, NodeGpus
from mpsd.mps.records import DomainRecords, NodeDomains
from mpsd.platform import processes, records
from mpsd.platform.event_loop import until
from mpsd.platform.limits_files import load_limits
from mpsd.platform.logs import be_silent, logger
from mpsd.platform.nvml import Nvml
from mpsd.platform.settings import GRANT
from mpsd.platform.settings import settings as settings_of
from mpsd.simulator.card import MPS_CLIENT, ContextClaim
from mpsd.simulator.gpus import MIB
from mpsd.simulator.node import cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml
from mpsd.watchdog.watchdog import Watchdog
from tests.model.gpu_worlds import policy
from tests.model.worlds import record, view, waiting

NOBODY = 65534
GRANTED_GIB, USED_MIB = 12, 8 * 1024
STRICT = policy(
    **dict.fromkeys(
        ("memory_over_grant", "outside_mps", "without_grant", "in_no_pod"), Response.KILL
    )
)


@dataclass(frozen=True, slots=True)
class Damage:
    """To the record of one grant. text: how many bytes are kept from the front, what is put there,
    and how many of the others follow. swapped: it is the other grant's. owner, mode: of its
    file."""

    kept: int
    put: bytes
    left_out: int
    swapped: bool
    owner: int
    mode: int

    def to(self, path: Path, other: bytes) -> None:
        sound = other if self.swapped else path.read_bytes()
        kept = self.kept % (len(sound) + 1)
        path.write_bytes(sound[:kept] + self.put + sound[kept + self.left_out :])
        path.chmod(self.mode)
        if os.geteuid() == 0:
            os.chown(path, self.owner, -1)


SOUND = Damage(0, b"", 0, swapped=False, owner=0, mode=0o600)
DAMAGES = st.just(SOUND) | st.builds(
    Damage,
    st.integers(0, 2000),
    st.binary(max_size=3) | st.sampled_from([b'"', b"}", b"9", b"null"]),
    st.integers(0, 3) | st.just(100_000),
    st.booleans(),
    st.sampled_from([0, NOBODY]),
    st.sampled_from([0o600, 0o600, 0o666, 0o000]),
)


class World:
    """Two GPUs with a program under a grant of each, of which the second does not say so in its
    environment, and a stranger beside it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        limits = load_limits(None)
        self.run = folder / "run"
        self.settings = settings_of(run_directory=str(self.run), environment={})
        simulated = create_node(
            folder / "simulation", cards_asked("A30x2", limits.facts), limits.facts.capabilities
        )
        nvml = Nvml(SimulatedNvml(simulated.folder))
        nvml.open()
        stack.callback(nvml.close)
        self.node = Node(nvml, NodeGpus(nvml, limits.facts).now.gpus, {}, (), {}, "")
        self.settings.grants.mkdir(parents=True)
        self.held: list[ProgramGrant] = []
        for gpu in self.node.gpus:
            name = f"grant-{gpu.label}"
            variables = environment(
                ClientLimit(GRANTED_GIB * 1024, 30), str(self.run / gpu.label / "client")
            )
            marks = {} if gpu.ordinal else {CUDA_VISIBLE_DEVICES: gpu.uuid, GRANT: name}
            holder = self._client(gpu, variables | marks, stack, simulated)
            parts = evenly((gpu.uuid,), GRANTED_GIB * 1024, 30)
            self.held.append(ProgramGrant(name, gpu.label, parts, 30, 8, holder, "sleep 600"))
            (self.run / gpu.label).mkdir()
            seen = replace(
                record(),
                domain=gpu.label,
                gpus=(gpu.uuid,),
                servers=(),
                daemon=processes.identity_of(1),
                boot_id=processes.boot_id(),
            )
            records.write(self.run / gpu.label / "record.json", seen)
        self.stranger = self._client(self.node.gpus[1], {}, stack, simulated)

    def _client(
        self, gpu: Gpu, variables: Mapping[str, str], stack: ExitStack, simulated: object
    ) -> processes.ProcessIdentity:
        """One that does not descend from this process, which would be mpsd's own."""
        start = ["/bin/sh", "-c", "sleep 600 >&- & echo $!"]
        pid = int(
            subprocess.run(start, env=dict(variables), stdout=subprocess.PIPE, check=True).stdout
        )
        found = processes.identity_of(pid)
        assert found
        stack.callback(processes.send_signal, found, signal.SIGKILL)
        card = simulated.card(gpu.ordinal)  # type: ignore[attr-defined]
        stack.callback(card.close)
        card.claim(ContextClaim(pid, MPS_CLIENT, USED_MIB * MIB))
        return found

    async def watched(self, *damages: Damage) -> tuple[LedgerView, ViolationsReport]:
        """What an agent that starts now knows, and whom its watchdog notes."""
        paths = [self.settings.grants / f"{grant.id}.json" for grant in self.held]
        for path, grant in zip(paths, self.held, strict=True):
            path.unlink(missing_ok=True)
            records.write(path, grant)
        sound = [path.read_bytes() for path in paths]
        for damage, path, other in zip(damages, paths, reversed(sound), strict=True):
            damage.to(path, other)
        joined = NodeDomains(self.run, self.node.gpus, STRICT, logger())
        here = GrantableGpus(lambda: STRICT, joined)
        ledger = LocalGrants(self.settings.grants, lambda: None, logger(), here)
        ledger.load()
        domains = DomainRecords(self.run, logger())
        watching = Watchdog(self.settings, self.node, lambda: STRICT, ledger, domains)
        watching._respond = lambda violation, *_: watching._history.add(violation, 0.0)  # type: ignore[assignment, method-assign]
        stop = asyncio.Event()
        running = asyncio.create_task(watching.run(stop))

        def is_over() -> bool:
            """The stranger is noted once it has become the program that it starts, however long
            that takes."""
            seen = watching.violations().node
            return running.done() or (seen.looks >= 4 and bool(seen.last or ledger.view.unreadable))

        await until(
            is_over, 20, "four scans, and who has no grant noted where all grants are known"
        )
        stop.set()
        await running
        found = ledger.view
        ledger.close()
        return found, watching.violations().node


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    be_silent()
    with (
        tempfile.TemporaryDirectory() as folder,
        ExitStack() as stack,
        pytest.MonkeyPatch.context() as patch,
    ):
        for pause in ("SCAN_S", "_MIN_PAUSE_S"):
            patch.setattr(f"mpsd.watchdog.watchdog.{pause}", 0.03)
        yield World(Path(folder), stack)


@settings(deadline=None, max_examples=25)
@given(first=DAMAGES, second=DAMAGES)
@example(SOUND, SOUND)
@example(replace(SOUND, swapped=True), replace(SOUND, swapped=True))
@example(replace(SOUND, owner=NOBODY), replace(SOUND, kept=40, left_out=100_000))
def test_whatever_becomes_of_records_nobody_with_a_proven_grant_is_ended(
    world: World, first: Damage, second: Damage
) -> None:
    ledger, seen = asyncio.run(world.watched(first, second))

    noted = {one.pid for one in seen.last}
    assert noted <= {world.stranger.pid}

    domains = tuple(
        DomainView(replace(record(), domain=gpu.label, gpus=(gpu.uuid,)), frozenset())
        for gpu in world.node.gpus
    )
    asks = replace(
        view(grants=ledger.held),
        waiting=(waiting("one", GRANTED_GIB), waiting("two", 9), waiting("three", 21)),
        unreadable=ledger.unreadable,
        gpus=world.node.gpus,
        domains=domains,
    )
    now: list[Grant] = [
        *world.held,
        *(one.grant for one in decide(asks, STRICT) if isinstance(one, Admit)),
    ]
    for gpu in world.node.gpus:
        assert sum(grant.part_of(gpu.uuid).memory_mib for grant in now) <= gpu.memory_mib
