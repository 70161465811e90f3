"""What an alert of mpsd is, and the rule of Prometheus that it makes.

One rule: an alert is for somebody who must do something; what only happens is on the board.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from mpsd.core.durations import DAY_S
from mpsd.core.promql import duration, in_window

RUNBOOK = "docs/operations.md"
_LONGEST_S = DAY_S

# What is told, in the words that Prometheus writes in.
NODE = "{{ $labels.instance }}"
DOMAIN = "{{ $labels.domain }} on {{ $labels.instance }}"
GPU = "{{ $labels.gpu }} on {{ $labels.instance }}"
POD = "{{ $labels.namespace }}/{{ $labels.pod }}"
SHARE = "{{ $value | humanizePercentage }}"
TIME = "{{ $value | humanizeDuration }}"

Rule = dict[str, object]


class Severity(StrEnum):
    """CRITICAL: wake somebody. WARNING: in working hours. INFO: worth knowing, never sent to anybody by itself."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Alert:
    """It fires where `measure` is as `wrong` says (such as `> 0.1`), for `lasts_s` seconds.

    measure: PromQL that has a value while all is well too. window_s: over which it measures, None for this moment.
    why: of thresholds and times. summary, description: with labels as Prometheus writes them in.
    """

    name: str
    severity: Severity
    measure: str
    wrong: str
    lasts_s: int
    summary: str
    description: str
    why: str
    window_s: int | None = None

    def value(self, longest_s: int = _LONGEST_S) -> str:
        """What is measured, over at most that long."""
        return in_window(self.measure, duration(min(self.window_s or 0, longest_s)))

    def expression(self, longest_s: int = _LONGEST_S) -> str:
        return f"{self.value(longest_s)} {self.wrong}"

    @property
    def runbook(self) -> str:
        """Where it says what to do."""
        return f"{RUNBOOK}#{self.name.lower()}"


@dataclass(frozen=True, slots=True)
class Patience:
    """The most that any alert waits, and looks back, in seconds: for rehearsals, which cannot wait for hours."""

    lasts_s: int = _LONGEST_S
    window_s: int = _LONGEST_S


def rule(alert: Alert, patience: Patience) -> Rule:
    """As Prometheus and its operator read it."""
    return {
        "alert": alert.name,
        "expr": alert.expression(patience.window_s),
        "for": duration(min(alert.lasts_s, patience.lasts_s)),
        "labels": {"severity": alert.severity.value},
        "annotations": {"summary": alert.summary, "description": alert.description, "runbook": alert.runbook},
    }


def groups(named: Iterable[tuple[str, Iterable[Alert]]], patience: Patience | None = None) -> dict[str, object]:
    """A file of rules, and the spec of a PrometheusRule."""
    patience = patience or Patience()
    return {"groups": [{"name": name, "rules": [rule(one, patience) for one in alerts]} for name, alerts in named]}
