"""A process of mpsd that can open no file and start no program ends nobody, loses nothing, and
goes on once it can."""

import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from mpsd.model.domain import State
from tests.whole.machine.machine import Machine, Service, eventually

_LOOKS, _LOOK_S = 20, 0.02
_GONE_S = 7.0  # longer than each deadline of the machine's policy after which a daemon is ended


@contextmanager
def no_more_files(*services: Service) -> Iterator[None]:
    """Whatever these processes open meanwhile is refused; what they have open stays, and what they
    close is lost."""
    before = [resource.prlimit(service.pid, resource.RLIMIT_NOFILE) for service in services]
    refused, over = threading.Event(), threading.Event()
    refusing = threading.Thread(target=_refuse, args=(services, refused, over))
    refusing.start()
    try:
        assert refused.wait(_GONE_S)
        yield
    finally:
        over.set()
        refusing.join()
        for service, limits in zip(services, before, strict=True):
            if service.running:
                resource.prlimit(service.pid, resource.RLIMIT_NOFILE, limits)


def _refuse(services: Sequence[Service], refused: threading.Event, over: threading.Event) -> None:
    """Keeps the limit of each at the lowest number that it had free at any look. refused: set after
    some looks."""
    lowest: dict[int, int] = {}
    for look in count():
        for service in services:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                free = next(number for number in count() if number not in opened(service))
                if free < lowest.setdefault(service.pid, free + 1):
                    lowest[service.pid] = free
                    _soft, hard = resource.prlimit(service.pid, resource.RLIMIT_NOFILE)
                    resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (free, hard))
        if look == _LOOKS:
            refused.set()
        if over.wait(_LOOK_S):
            return


def opened(service: Service) -> set[int]:
    return {int(file.name) for file in Path(f"/proc/{service.pid}/fd").iterdir()}


def test_where_descriptors_run_out_nobody_is_ended_and_all_heals(machine: Machine) -> None:
    machine.set_policy(graces={"wedged_limit_s": 2})
    services = machine.apart()
    stays, ends = machine.client(4), machine.client(5)
    daemon = machine.daemon()
    with no_more_files(*services):
        ends.kill()
        for service in services:
            eventually(lambda one=service: one.logged("tried again later"), "it is said")
        time.sleep(_GONE_S)
        assert all(service.running for service in services), services
        assert stays.running
    comes = machine.client(6)
    eventually(
        lambda: machine.holders == {stays.pid, comes.pid}, "the grant of who has gone is back"
    )
    assert machine.in_state(State.READY).daemon_pid == daemon
    assert stays.running
    for service in services:
        said = [
            (line.get("role"), line.get("domain")) for line in service.logged("tried again later")
        ]
        assert len(said) == len(set(said)), service  # each part says it once a minute at most
        assert all(
            "limit of open files" in line["remedy"] for line in service.logged("tried again later")
        )
        assert not service.logged("not ended")
    assert not services[-1].logged("violation")
