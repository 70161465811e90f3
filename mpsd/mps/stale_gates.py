"""Closes the gates of domains whose daemon died while nobody looked.

One rule: a gate is believed only as long as the daemon of its domain's record lives. `mpsd control` sees to that while
it runs, and before anything else when it starts; the agent does in between.
"""

from collections.abc import Collection, Iterable
from pathlib import Path

from mpsd.model.domain_states import SERVING, State
from mpsd.model.node_view import DomainRecord
from mpsd.mps import gate
from mpsd.mps.domain_records import DomainRecords
from mpsd.platform.logs import Logger


def close_before_start(run_directory: Path, log: Logger) -> None:
    """For `mpsd control`: only a daemon that served when an earlier one was killed, and lives, keeps its gate."""
    _close(run_directory, DomainRecords(run_directory, log).read(), SERVING, log)


def close_unguarded(run_directory: Path, records: Iterable[DomainRecord], log: Logger) -> None:
    """For the agent. records: as they are now. Costs a stat or two a domain."""
    _close(run_directory, records, frozenset(State), log)


def _close(run_directory: Path, records: Iterable[DomainRecord], states: Collection[State], log: Logger) -> None:
    serving = {record.domain for record in records if record.daemon and record.state in states}
    for domain in gate.remove_all_but(run_directory, serving):
        log.warning("gate closed", domain=domain, reason="its control daemon is gone, or never served")
