"""Every table of the documentation that is printed from code. `make docs` writes them all."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from mpsd.admission.rules.verdict import RULES
from mpsd.model.cgpu_policies import POLICIES
from mpsd.model.domain import TRANSITIONS
from mpsd.model.metrics import METRICS, Metric
from mpsd.operations.doctor.rules.checks import Check
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.node_checks import NODE_CHECKS
from tests.docs import command_line_tables, policy_tables
from tests.docs.pages import ROOT
from tests.docs.tables import Row, Table
from tests.e2e.run_record import cluster_rows
from tests.e2e_gpu.record import gpu_rows
from tests.manifests.rights import rights_table
from tests.model.manifests import POLICY
from tests.prometheus.shipped import ALERTS

_OF_A_GRANT = ("gpu", "uuid", "holder", "namespace", "pod", "container")


def _rules() -> list[Row]:
    modes = POLICY.admission.rules
    return [(f"`{rule.id}`", str(rule.scope), str(modes[rule.id]), rule.reason) for rule in RULES]


def _dialect_policies() -> list[Row]:
    return [
        (f"{row.number} {row.name}", row.means, str(row.share), row.on_mps)
        for row in POLICIES.values()
    ]


def _transitions() -> list[Row]:
    """A row for each event and the state that it leads to, with the states in which it counts."""
    states: dict[tuple[str, str], list[str]] = {}
    for (state, event), target in TRANSITIONS.items():
        states.setdefault((event, target), []).append(state)
    return [(event, ", ".join(before), target) for (event, target), before in states.items()]


def _alerts() -> list[Row]:
    of_severity: dict[str, list[str]] = {}
    for one in ALERTS:
        name = f"[{one['alert']}](#{one['alert'].lower()})"
        text = name if one["for"] == "0s" else f"{name} ({one['for']})"
        of_severity.setdefault(one["labels"]["severity"], []).append(text)
    return [(severity, ", ".join(alerts)) for severity, alerts in of_severity.items()]


def _metrics() -> list[Row]:
    return [(f"`{one.name}`", _labels(one), one.help) for one in METRICS]


def _labels(metric: Metric) -> str:
    """Those of every grant's series in one word, which the page explains."""
    if metric.labels == _OF_A_GRANT:
        return "*grant*"
    return ", ".join(metric.labels)


def _checks(checks: Iterable[Check[Any]]) -> list[Row]:
    return [(f"`{one.id}`", one.well, str(one.severity)) for one in checks]


_CHECK = ("check", "well means", "else")
TABLES = (
    Table("rules of admission", "docs/admission.md", ("rule", "pods", "as shipped", "why"), _rules),
    Table(
        "policies of cGPU",
        "docs/dialects.md",
        ("policy", "in cGPU", "cap on MPS", "what mpsd does"),
        _dialect_policies,
    ),
    Table(
        "states of a domain", "docs/domain-states.md", ("what is seen", "in", "next"), _transitions
    ),
    Table("metrics", "docs/metrics.md", ("metric", "labels", "meaning"), _metrics),
    Table("checks of a node", "docs/operations/doctor.md", _CHECK, partial(_checks, NODE_CHECKS)),
    Table(
        "checks of a cluster", "docs/operations/doctor.md", _CHECK, partial(_checks, CLUSTER_CHECKS)
    ),
    Table("alerts", "docs/operations/alerts.md", ("severity", "alerts"), _alerts),
    Table(
        "rights",
        "docs/security.md",
        ("right", "in the values"),
        rights_table,
        ("with a stolen token",),
    ),
    policy_tables.POLICY,
    Table(
        "clusters",
        "docs/install.md",
        (
            "Kubernetes",
            "container runtime",
            "runc",
            "cgroups",
            "passed",
            "failed",
            "skipped",
            "last run",
        ),
        cluster_rows,
    ),
    Table(
        "gpu clusters",
        "docs/install.md",
        (
            "GPU",
            "driver",
            "Kubernetes",
            "container runtime",
            "runc",
            "cgroups",
            *("passed", "failed", "skipped"),
            "on",
        ),
        gpu_rows,
    ),
    *command_line_tables.TABLES,
)


def main() -> None:
    for table in TABLES:
        path = ROOT / table.page
        text = path.read_text()
        printed = table.printed(text)
        if printed != text:
            path.write_text(printed)
            print(f"{table.page}: {table.name}")


if __name__ == "__main__":
    main()
