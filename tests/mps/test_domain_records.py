"""What `mpsd control` says of its domains, as the agent reads it: of this boot, whole, and of
living daemons only."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mpsd.model.domain import State
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import RECORD_VERSION, DomainRecord
from mpsd.mps.records import DomainRecords
from mpsd.platform import processes, records
from mpsd.platform.logs import logger


def ourselves() -> ProcessIdentity:
    found = processes.identity_of(os.getpid())
    assert found
    return found


def record(name: str) -> DomainRecord:
    """Of a domain whose daemon is this very process."""
    gpus = (f"GPU-{name}",)
    past = (RECORD_VERSION, name, gpus, State.READY, 1.0, "", ourselves(), (), 0, 0, 1.0, {})
    return DomainRecord(*past, boot_id=processes.boot_id())


def write(directory: Path, written: DomainRecord) -> Path:
    path = directory / written.domain / "record.json"
    path.parent.mkdir(exist_ok=True)
    records.write(path, written)
    return path


def test_domains_come_by_the_number_of_their_gpu(tmp_path: Path) -> None:
    for name in ("gpu10", "gpu2", "gpu0-1"):
        write(tmp_path, record(name))
    found = DomainRecords(tmp_path, logger()).read()
    assert [one.domain for one in found] == ["gpu0-1", "gpu2", "gpu10"]


def test_a_record_that_comes_changes_or_goes_is_noticed_once(tmp_path: Path) -> None:
    here = DomainRecords(tmp_path, logger())
    assert here.read() == ()
    path = write(tmp_path, record("gpu0"))
    assert here.changed()
    assert [one.state for one in here.read()] == [State.READY]
    assert not here.changed()
    write(tmp_path, replace(record("gpu0"), state=State.FAULT))
    assert here.changed()
    assert [one.state for one in here.read()] == [State.FAULT]
    path.unlink()
    assert here.changed()
    assert here.read() == ()
    assert not here.changed()


def test_a_record_that_is_not_understood_is_left_out_and_the_others_count(tmp_path: Path) -> None:
    write(tmp_path, record("gpu0"))
    write(tmp_path, replace(record("gpu1"), version=RECORD_VERSION + 1))
    write(tmp_path, replace(record("gpu2"), boot_id="another"))
    write(tmp_path, record("gpu3")).write_text("{")
    assert [one.domain for one in DomainRecords(tmp_path, logger()).read()] == ["gpu0"]


def test_what_cannot_be_read_for_want_of_file_descriptors_is_read_again(tmp_path: Path) -> None:
    here = DomainRecords(tmp_path, logger())
    for name in ("gpu0", "gpu1"):
        write(tmp_path, record(name))
        with no_more_files(), pytest.raises(OSError, match="Too many open files"):
            here.read()
        assert name in [one.domain for one in here.read()]
    write(tmp_path, replace(record("gpu0"), state=State.FAULT))
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        here.read()
    assert [one.state for one in here.read()] == [State.FAULT, State.READY]
    assert not here.doubtful(["GPU-0"])


def test_of_a_record_that_cannot_be_read_only_the_gpus_that_it_named_are_doubtful(
    tmp_path: Path,
) -> None:
    here = DomainRecords(tmp_path, logger())
    first, second = (
        replace(record("gpu0"), gpus=("GPU-0",)),
        replace(record("gpu1"), gpus=("GPU-1",)),
    )
    write(tmp_path, first)
    path = write(tmp_path, second)
    here.read()
    assert here.doubtful(["GPU-0", "GPU-1"]) == set()
    path.write_text("{")
    anew = DomainRecords(tmp_path, logger())
    for looking in (here, anew):
        assert [one.domain for one in looking.read()] == ["gpu0"]
    assert here.doubtful(["GPU-0", "GPU-1"]) == {"GPU-1"}
    assert anew.doubtful(["GPU-0", "GPU-1"]) == {"GPU-0", "GPU-1"}, "nobody knows what it named"


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


DEAD = replace(ourselves(), start_ticks=1)


def test_a_domain_whose_daemon_is_dead_is_down_whatever_its_record_says(tmp_path: Path) -> None:
    write(tmp_path, replace(record("gpu0"), daemon=DEAD, servers=(7,)))
    (found,) = DomainRecords(tmp_path, logger()).read()
    assert (found.state, found.daemon, found.servers) == (State.DOWN, None, ())
    assert "is gone" in found.reason


def test_a_drained_domain_stays_drained_while_mpsd_ends_its_daemon(tmp_path: Path) -> None:
    write(tmp_path, replace(record("gpu0"), state=State.DRAINED, daemon=DEAD, servers=(7,)))
    (found,) = DomainRecords(tmp_path, logger()).read()
    assert (found.state, found.daemon, found.servers) == (State.DRAINED, None, ())
