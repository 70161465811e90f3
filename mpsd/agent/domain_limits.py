"""Tells the domains' daemons their memory limits, and remembers which of them are confirmed.

One rule: a limit counts as in force only after it was read back from this very daemon and server, and not for ever: a
root program on the host can change it (docs/mps-observed.md, section 4).
"""

from collections.abc import Callable, Mapping

from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import DomainRecord, DomainView, ServerLimit
from mpsd.model.policy import Policy
from mpsd.mps.control_pipe import ControlPipe
from mpsd.platform import records
from mpsd.platform.settings import Settings

_BELIEVED_S = 120.0


class DomainLimits:
    """environment: of the control commands."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], policy: Callable[[], Policy]) -> None:
        self._settings = settings
        self._environment = environment
        self._policy = policy
        self._confirmed: dict[str, dict[tuple[int | None, int], tuple[ServerLimit, float]]] = {}
        self._of: dict[str, ProcessIdentity | None] = {}

    def view(self, record: DomainRecord, now: float) -> DomainView:
        """The domain with the limits that are known to be in force."""
        if self._of.get(record.domain) != record.daemon:
            self._of[record.domain] = record.daemon
            self._confirmed[record.domain] = {}
        confirmed = self._confirmed.setdefault(record.domain, {})
        here = {None, *record.servers}
        fresh = (limit for limit, at in confirmed.values() if limit.server in here and now - at < _BELIEVED_S)
        return DomainView(record, frozenset(fresh))

    async def set(self, domain: str, limit: ServerLimit, now: float) -> bool:
        """False where it was only set again. ControlFailed or NotUnderstood where it cannot be set and read back."""
        folder = self._settings.domain(domain)
        if limit.server is None:  # first, so that a daemon that is started meanwhile gets it too
            records.write(folder.limits, limit.memory_mib)
        pipe = ControlPipe(folder.pipe, self._environment, self._policy().graces.command_s)
        confirmed = self._confirmed.setdefault(domain, {})
        before = confirmed.pop((limit.server, limit.ordinal), None)
        await pipe.set_limit(limit)
        confirmed[limit.server, limit.ordinal] = (limit, now)
        return before is None or before[0] != limit
