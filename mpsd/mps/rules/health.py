"""When a GPU is sick, and when it is well again: from looks at its health, and from what became of
mpsd's own contexts on it. `now_s`: seconds of CLOCK_BOOTTIME."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.gpu_health import GpuCondition, GpuHealth, HealthCause, XidKind
from mpsd.model.policy import HealthPolicy

_TRIED = "mpsd tries it once its programs have ended"


@dataclass(frozen=True, slots=True)
class HealthRules:
    """What the files in limits/ say of it."""

    facts: GpuFacts
    policy: HealthPolicy

    def kind(self, xid: int) -> XidKind:
        return self.policy.xids.get(str(xid), self.facts.xid(xid).kind)


def looked(before: GpuCondition, seen: GpuHealth, rules: HealthRules, now_s: float) -> GpuCondition:
    """After a look. A new cause takes the place of one that persists no more; what has come once
    stays until `passed`."""
    now = replace(
        before,
        seen=replace(seen, xids=()),
        xids=_counted(before.xids, seen.xids),
        braked_s=_braked_s(before, seen, now_s),
    )
    if before.accepted is None or (seen.uncorrected or 0) < before.accepted:
        # the first look, or the first after a reset
        now = replace(now, accepted=seen.uncorrected)
    if persisting := _persisting(now, rules, now_s):
        cause, reason = persisting
        return replace(now, cause=cause, reason=reason, persists=True)
    now = replace(now, persists=False)
    if come := _come(before, seen, rules):
        cause, reason = come
        return replace(now, cause=cause, reason=reason)
    return now


def context_failed(before: GpuCondition, why: str, rules: HealthRules) -> GpuCondition:
    """After a context of mpsd's own failed."""
    failed = before.failed_contexts + 1
    now = replace(before, failed_contexts=failed)
    if now.cause is not None or failed < rules.policy.failed_contexts:
        return now
    reason = f"{failed} contexts in a row have failed on it, the last with {why}"
    return replace(now, cause=HealthCause.CONTEXTS, reason=f"{reason}; {_TRIED}; {_reset(now.gpu)}")


def context_made(before: GpuCondition) -> GpuCondition:
    return replace(before, failed_contexts=0)


def passed(before: GpuCondition) -> GpuCondition:
    """After a canary that has passed since the cause came: well, unless that persists."""
    now = replace(before, failed_contexts=0)
    if before.persists:
        return now
    return replace(now, cause=None, reason="", accepted=before.seen.uncorrected)


def _counted(before: dict[str, int], xids: Iterable[int]) -> dict[str, int]:
    counts = dict(before)
    for xid in xids:
        counts[str(xid)] = counts.get(str(xid), 0) + 1
    return counts


def _braked_s(before: GpuCondition, seen: GpuHealth, now_s: float) -> float | None:
    if not seen.brakes:
        return None
    if before.braked_s is None:
        return now_s
    return before.braked_s


def _persisting(
    now: GpuCondition, rules: HealthRules, now_s: float
) -> tuple[HealthCause, str] | None:
    """What is wrong with it as long as NVML says so."""
    seen = now.seen
    if seen.remap_failed:
        return (
            HealthCause.ROWS,
            f"a row of its memory is bad, and none is left for it; {_reset(now.gpu)}",
        )
    if seen.remap_pending:
        why = "rows of its memory are to be remapped, which a reset does"
        return HealthCause.ROWS, f"{why}; {_reset(now.gpu)}"
    if seen.pages_pending:
        why = "pages of its memory are to be retired, which a reset does"
        return HealthCause.PAGES, f"{why}; {_reset(now.gpu)}"
    if seen.recovery:
        return HealthCause.RECOVERY, f"its driver asks for {seen.recovery}; {_reset(now.gpu)}"
    if now.braked_s is not None and now_s - now.braked_s >= rules.policy.brake_s:
        why = f"{' and '.join(seen.brakes or ())} for {rules.policy.brake_s:g} s and more"
        return (
            HealthCause.BRAKE,
            f"{why}; see to its cooling and power (nvidia-smi -q -d PERFORMANCE)",
        )
    return None


def _come(
    before: GpuCondition, seen: GpuHealth, rules: HealthRules
) -> tuple[HealthCause, str] | None:
    """What this look shows for the first time."""
    for number in seen.xids:
        if rules.kind(number) is XidKind.HARDWARE:
            xid = f"Xid {number} ({rules.facts.xid(number).what})"
            return HealthCause.XID, f"{xid}; {_TRIED}; {_reset(before.gpu)}"
    if seen.uncorrected is None or before.accepted is None:
        return None
    if seen.uncorrected > max(before.accepted, before.seen.uncorrected or 0):
        more = seen.uncorrected - before.accepted
        why = f"{more} more uncorrectable ECC errors"
        if more == 1:
            why = "one more uncorrectable ECC error"
        return HealthCause.ECC, f"{why}; {_TRIED}; {_reset(before.gpu)}"
    return None


def _reset(gpu: str) -> str:
    how = f"drain the node and reset the GPU (nvidia-smi -r -i {gpu}), or reboot"
    return f"{how}; if it returns, replace the card"
