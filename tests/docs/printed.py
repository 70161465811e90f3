"""Every table of the documentation that is printed from code. `make docs` writes them all.

One rule: a fact that code knows is written once, in code.
"""

from mpsd.core.admission_rules import RULES
from mpsd.core.alerts import ALERTS
from mpsd.core.dialect_policies import POLICIES
from mpsd.core.domain_states import TRANSITIONS
from mpsd.core.promql import duration
from tests.core.manifests import POLICY
from tests.docs import policy_tables, setting_tables
from tests.docs.pages import ROOT
from tests.docs.tables import Row, Table


def _rules() -> list[Row]:
    modes = POLICY.admission.rules
    return [(f"`{rule.id}`", str(rule.scope), str(modes[rule.id]), rule.reason, rule.remedy) for rule in RULES]


def _dialect_policies() -> list[Row]:
    return [(f"{row.number} {row.name}", row.means, str(row.share), row.on_mps) for row in POLICIES.values()]


def _transitions() -> list[Row]:
    return [(state, event, target) for (state, event), target in TRANSITIONS.items()]


def _alerts() -> list[Row]:
    return [
        (
            f"[{one.name}](#{one.name.lower()})",
            one.severity,
            f"`{one.expression()}`".replace("|", r"\|"),
            duration(one.lasts_s),
            one.why,
        )
        for one in ALERTS
    ]


TABLES = (
    Table("rules of admission", "docs/admission.md", ("rule", "pods", "as shipped", "why", "what to do"), _rules),
    Table(
        "policies of cGPU", "docs/dialects.md", ("policy", "in cGPU", "cap on MPS", "what mpsd does"), _dialect_policies
    ),
    Table("states of a domain", "docs/domain-states.md", ("state", "what is seen", "next"), _transitions),
    Table("alerts", "docs/operations.md", ("alert", "severity", "fires where", "for", "why so"), _alerts),
    policy_tables.POLICY,
    policy_tables.CAPABILITIES,
    policy_tables.CARDS,
    *setting_tables.TABLES,
)


def main() -> None:
    """Writes each table into its page."""
    for table in TABLES:
        path = ROOT / table.page
        text = path.read_text()
        printed = table.printed(text)
        if printed != text:
            path.write_text(printed)
            print(f"{table.page}: {table.name}")


if __name__ == "__main__":
    main()
