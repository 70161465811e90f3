"""Drains of a domain, asked by the agent's file, readable or not, or by mpsd's own stop."""

from dataclasses import dataclass

from mpsd.model.client_limits import DENY_MIB
from mpsd.platform import records
from mpsd.platform.run_directory import DomainFolder


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """What the agent asks of `mpsd control`. reason: for the domain's record."""

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
    was_asked = folder.drain.exists()
    folder.drain.unlink(missing_ok=True)
    return was_asked


def asked(folder: DomainFolder) -> DrainRequest | None:
    try:
        return records.read(folder.drain, DrainRequest)
    except records.UnreadableRecord as error:
        return DrainRequest(f"a drain is requested, and its reason cannot be read: {error}")


class DomainDrain:
    """Whether a domain is to be drained. stopping: mpsd itself ends, which is not withdrawn.
    leaving: why the domain ends alone, as its GPUs are of others; else empty. trouble, sick: why
    one of its GPUs can be given to no program now, or is sick; else empty."""

    def __init__(self, folder: DomainFolder) -> None:
        self._folder = folder
        self._request: DrainRequest | None = None
        self.stopping = False
        self.leaving = self.trouble = self.sick = ""

    def look(self) -> None:
        self._request = asked(self._folder)

    def is_news(self) -> bool:
        """Whether the agent's request has come or gone since the last look; costs one stat."""
        return self._folder.drain.exists() != (self._request is not None)

    @property
    def asked(self) -> bool:
        return self.waits_for_grants or bool(self.sick)

    @property
    def waits_for_grants(self) -> bool:
        """Whether it is for more than a sick GPU, which is tried once no program is on it."""
        return self.stopping or bool(self.leaving or self.trouble) or self._request is not None

    @property
    def is_for_sickness(self) -> bool:
        """Whether its daemon is needed again, to try the GPU."""
        return bool(self.sick) and not (self.stopping or self.leaving or self.trouble)

    @property
    def reason(self) -> str:
        if self.leaving and not self.stopping:
            return self.leaving
        if (self.trouble or self.sick) and not self.stopping:
            return self.trouble or self.sick
        if self._request and not self.stopping:
            return self._request.reason
        return "mpsd is stopping, and waits for programs with a grant"

    @property
    def granted(self) -> bool:
        """Whether a grant is held here, by the agent's limit, which is denial for none."""
        try:
            return limit_mib(self._folder) > DENY_MIB
        except records.UnreadableRecord:
            return True


def limit_mib(folder: DomainFolder) -> int:
    """The limit that the agent last set, else denial. records.UnreadableRecord."""
    return records.read(folder.limits, int) or DENY_MIB
