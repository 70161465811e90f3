"""Processes on the GPUs of a small node, for tests of who takes more than was given."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mpsd.model.client_limits import ClientLimit, environment
from mpsd.model.grants import Grant, evenly
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.policy import Policy, Response
from mpsd.model.violations import ViolationKind
from mpsd.watchdog.rules.findings import WatchdogView
from mpsd.watchdog.rules.judge import SECOND_SCAN_S, JudgedScan, WatchdogVerdict, judge
from tests.model.worlds import GPUS, POLICY, UUIDS, identity

LOOK_S = 0.2


def pod_grant(
    name: str, mib: int = 1024, *gpus: int, clients: int = 8, percent: int = 100
) -> Grant:
    """A pod's grant of each of these GPUs, by default of the first."""
    return Grant(
        id=f"{name}-uid",
        domain="gpu0" if len(gpus) < 2 else "gpu0-1",
        parts=evenly([UUIDS[gpu] for gpu in gpus or (0,)], mib, 0),
        thread_percent=percent,
        clients=clients,
        holder=PodName("default", name, f"{name}-uid"),
        command=f"default/{name}",
    )


def program_grant(name: str, mib: int = 1024) -> Grant:
    """A grant to a program of this machine."""
    return replace(pod_grant(name, mib), holder=identity(7))


def client(
    pid: int, grant: Grant | None, used_mib: int | None = 100, gpu: int = 0, **more: object
) -> Client:
    """A process on MPS as mpsd starts it; of a grant's pod where that has one."""
    held = ClientLimit(grant.memory_mib, grant.thread_percent) if grant else None
    return replace(
        Client(
            process=ProcessIdentity(pid, pid, "a-boot"),
            gpu=UUIDS[gpu],
            used_mib=used_mib,
            on_mps=True,
            command="/usr/bin/python train.py",
            grant=grant.id if grant else None,
            pod=grant.id if grant and isinstance(grant.holder, PodName) else None,
            environment=environment(held, "/run/mpsd/client") if held else {},
        ),
        **more,  # type: ignore[arg-type]
    )


def policy(**actions: Response | str) -> Policy:
    """The tests' policy with these actions; memory is over beyond 32 MiB more than was granted."""
    changed = {
        kind: replace(getattr(POLICY.violations, kind), action=action)
        for kind, action in actions.items()
    }
    return replace(POLICY, violations=replace(POLICY.violations, **changed))


EVERYTHING_KILLS = policy(**dict.fromkeys(map(str, ViolationKind), Response.KILL))


@dataclass
class Watch:
    """Looks one after the other, as the watchdog has them."""

    policy: Policy = POLICY
    now: float = 0.0
    memory: JudgedScan = field(default_factory=JudgedScan)

    def look(
        self, grants: tuple[Grant, ...], *clients: Client, after_s: float = LOOK_S, **more: object
    ) -> WatchdogVerdict:
        self.now += after_s
        seen = WatchdogView(
            now=self.now,
            gpus=GPUS,
            domains={"gpu0": UUIDS[:1], "gpu1": UUIDS[1:], "gpu0-1": UUIDS},
            grants={grant.id: grant for grant in grants},
            clients=clients,
            ungranted={},
            own=frozenset(),
            pods_known=True,
        )
        verdict, self.memory = judge(replace(seen, **more), self.memory, self.policy)  # type: ignore[arg-type]
        return verdict

    def looks(self, grants: tuple[Grant, ...], *clients: Client, **more: object) -> WatchdogVerdict:
        """Two looks, the second soon after the first; what came of the second, where the first
        asked for it."""
        first = self.look(grants, *clients, **more)  # type: ignore[arg-type]
        return (
            self.look(grants, *clients, after_s=SECOND_SCAN_S, **more)
            if first.scan_again
            else first
        )  # type: ignore[arg-type]


def ended(verdict: WatchdogVerdict) -> set[int]:
    """The pids of those that are to end."""
    return {violation.client.pid for violation in verdict.violations if violation.response.ends}


def kinds(verdict: WatchdogVerdict) -> Mapping[int, set[ViolationKind]]:
    """What is wrong, by pid."""
    found: dict[int, set[ViolationKind]] = {}
    for violation in verdict.violations:
        found.setdefault(violation.client.pid, set()).add(violation.kind)
    return found
