"""The health of one domain's GPUs: looks at them, and keeps which of them is sick and why."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from mpsd.model.gpu_health import GpuCondition, XidKind
from mpsd.model.grants import Gpu
from mpsd.mps.rules import health
from mpsd.mps.rules.health import HealthRules
from mpsd.platform import clock
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import Nvml, NvmlFailed

_LOOK_S = 2.0  # between two looks: nine calls of NVML a GPU


class DomainHealth:
    """rules: as the files in limits/ say it now."""

    def __init__(
        self, gpus: Sequence[Gpu], nvml: Nvml, rules: Callable[[], HealthRules], log: Logger
    ) -> None:
        self._nvml = nvml
        self._rules = rules
        self._log = log
        self._labels = {gpu.uuid: gpu.label for gpu in gpus}
        self._now = {gpu.uuid: GpuCondition(gpu.uuid) for gpu in gpus}
        self._xid_s: dict[str, float] = {}  # of the last one, by CLOCK_BOOTTIME
        self._look_at = 0.0
        self._is_news = False

    def take_over(self, earlier: Sequence[GpuCondition]) -> None:
        """Starts from the record of an earlier mpsd. What is sick is tried again."""
        for one in earlier:
            if one.gpu in self._now:
                self._now[one.gpu] = one
        self._is_news = bool(self.reason)

    @property
    def as_recorded(self) -> tuple[GpuCondition, ...]:
        return tuple(self._now.values())

    @property
    def reason(self) -> str:
        """Which are sick, and why; empty where all are well."""
        sick = [one for one in self._now.values() if one.cause is not None]
        return "; ".join(f"{self._labels[one.gpu]} is sick: {one.reason}" for one in sick)

    def look(self) -> bool:
        """Now and then. Whether a cause has come since the last call, or persists no more, so that
        no earlier canary says anything of it."""
        if self.is_due:
            self._look_at = time.monotonic() + _LOOK_S
            for uuid in self._now:
                self._look_at_gpu(uuid)
        is_news = self._is_news
        self._is_news = False
        return is_news

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._look_at

    def _look_at_gpu(self, uuid: str) -> None:
        """What cannot be asked changes nothing: that it does not answer is a trouble of its own."""
        try:
            seen = self._nvml.health(uuid)
        except NvmlFailed:
            return
        rules = self._rules()
        if seen.xids:
            self._xid_s[uuid] = clock.boot_s()
        for xid in seen.xids:
            kind = rules.kind(xid)
            log = self._log.info
            if kind is XidKind.HARDWARE:
                log = self._log.warning
            about = {"what": rules.facts.xid(xid).what, "kind": kind.value}
            log("xid", gpu=self._labels[uuid], xid=xid, **about)
        self._keep(health.looked(self._now[uuid], seen, rules, clock.boot_s()))

    def struck(self, since_s: float) -> frozenset[int]:
        """The MPS clients on those GPUs that had an Xid since then (CLOCK_BOOTTIME)."""
        found: frozenset[int] = frozenset()
        for uuid in self._now:
            self._look_at_gpu(uuid)
            if self._xid_s.get(uuid, -math.inf) >= since_s:
                with suppress(NvmlFailed):
                    found |= self._nvml.mps_pids(uuid)
        return found

    def context_ended(self, uuid: str, failure: str) -> None:
        """A context of mpsd's own was made, or failed in these words."""
        if failure:
            self._keep(health.context_failed(self._now[uuid], failure, self._rules()))
        else:
            self._keep(health.context_made(self._now[uuid]))

    def canary_passed(self) -> None:
        """Since `look` last said that it was needed."""
        for one in [*self._now.values()]:
            self._keep(health.passed(one))

    def _keep(self, now: GpuCondition) -> None:
        before = self._now[now.gpu]
        self._now[now.gpu] = now
        if now.cause is None:
            if before.cause is not None:
                self._log.info("gpu well", gpu=self._labels[now.gpu])
            return
        if (now.cause, now.reason) != (before.cause, before.reason):
            self._log.warning("gpu sick", gpu=self._labels[now.gpu], reason=now.reason)
            self._is_news = True
        if before.persists and not now.persists:
            self._is_news = True
