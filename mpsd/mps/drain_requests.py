"""What the agent asks of `mpsd control`: to take no new programs on a domain, and why.

One rule: the file is the request, so one that cannot be read is a request too.
"""

from dataclasses import dataclass

from mpsd.platform import records
from mpsd.platform.domain_folder import DomainFolder


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
