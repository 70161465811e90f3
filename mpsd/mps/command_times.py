"""How long the domains' daemons took to answer `mpsd control`, as it has written it down.

One rule: what another boot, or another form, has written says nothing.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from mpsd.model.times_taken import CommandTimes
from mpsd.platform import processes, records
from mpsd.platform.settings import Settings


def command_times(settings: Settings, domains: Iterable[str]) -> Mapping[str, CommandTimes]:
    """By domain; none of a domain where there is nothing that can be read."""
    found = {}
    for domain in domains:
        with suppress(records.UnreadableRecord):
            read = records.read(settings.domain(domain).commands, CommandTimes)
            if read and read.boot_id == processes.boot_id():
                found[domain] = read
    return found
