"""Whether a domain is to take no new programs, why, and whether somebody could still lose something by its end.

One rule: the request is the agent's file or mpsd's own stop, and nothing else.
"""

from dataclasses import dataclass

from mpsd.model.client_limits import DENY_MIB
from mpsd.platform import records
from mpsd.platform.run_directory import DomainFolder

# What the agent asks of `mpsd control`: to take no new programs on a domain, and why.
#
# One rule: the file is the request, so one that cannot be read is a request too.


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """reason: in plain words, for the domain's record."""

    reason: str


def ask(folder: DomainFolder, reason: str) -> bool:
    """Asks for a drain; False where that is asked already, for this reason."""
    wanted = DrainRequest(reason)
    if asked(folder) == wanted:
        return False
    folder.make()  # a GPU may be cordoned before `mpsd control` has ever run
    records.write(folder.drain, wanted, mode=0o644)
    return True


def withdraw(folder: DomainFolder) -> bool:
    """Lets the domain serve again; False where no drain was asked."""
    if not folder.drain.exists():
        return False
    records.remove(folder.drain)
    return True


def asked(folder: DomainFolder) -> DrainRequest | None:
    """None where nobody asks for a drain."""
    try:
        return records.read(folder.drain, DrainRequest)
    except records.UnreadableRecord as error:
        return DrainRequest(f"a drain is asked, and its reason cannot be read: {error}")


def is_asked(folder: DomainFolder) -> bool:
    return folder.drain.exists()


_STOPPING = "mpsd is stopping, and waits for the programs that have a grant"


class DomainDrain:
    """stopping: mpsd itself asks, and takes nothing back."""

    def __init__(self, folder: DomainFolder) -> None:
        self._folder = folder
        self._request: DrainRequest | None = None
        self.stopping = False

    def look(self) -> None:
        self._request = asked(self._folder)

    def is_news(self) -> bool:
        """Whether the agent's request has come or gone since the last look; costs one stat."""
        return is_asked(self._folder) != (self._request is not None)

    @property
    def asked(self) -> bool:
        return self.stopping or self._request is not None

    @property
    def reason(self) -> str:
        if self._request and not self.stopping:
            return self._request.reason
        return _STOPPING

    @property
    def granted(self) -> bool:
        """Whether a program holds a grant here and may come to its GPU yet, which without mpsd it would do unlimited.

        The agent's limit says so: it is denial where nobody holds a grant.
        """
        try:
            return limit_mib(self._folder) > DENY_MIB
        except records.UnreadableRecord:
            return True


def limit_mib(folder: DomainFolder) -> int:
    """What the agent last set, else denial: no program may start unlimited before the agent has looked.

    records.UnreadableRecord where there is something else.
    """
    return records.read(folder.limits, int) or DENY_MIB
