"""The page about admission says what the rules and the shipped policy say."""

from pathlib import Path

from mpsd.core.admission_modes import label_of
from mpsd.core.admission_rules import RULES
from mpsd.core.policy import Mode
from tests.core.manifests import POLICY

PAGE = (Path(__file__).parents[2] / "docs" / "admission.md").read_text()
ROWS = [
    f"| `{rule.id}` | {rule.scope} | {POLICY.admission.rules[rule.id]} | {rule.reason} | {rule.remedy} |"
    for rule in RULES
]


def test_the_table_of_rules_is_printed_from_them() -> None:
    assert "\n".join(ROWS) in PAGE, "print it with: python -m tests.core.test_admission_docs"


def test_the_page_names_every_label_and_every_field_that_it_speaks_of() -> None:
    assert all(f"`{label_of(mode)}`" in PAGE for mode in Mode)
    fields = ["exempt_namespaces", "host_ipc", "void_visible_devices", "visible_devices_kept_for", "placement_accounts"]
    assert all(f"`{field}" in PAGE and hasattr(POLICY.admission, field) for field in fields)


if __name__ == "__main__":
    print("\n".join(ROWS))
