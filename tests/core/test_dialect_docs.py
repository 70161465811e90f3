"""The page about dialects says what the table of policies says, and names every variable."""

from pathlib import Path

from mpsd.core.dialect_names import VARIABLES
from mpsd.core.dialect_policies import POLICIES

PAGE = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text()
ROWS = [f"| {row.number} {row.name} | {row.means} | {row.share} | {row.on_mps} |" for row in POLICIES.values()]


def test_the_table_of_policies_is_printed_from_them() -> None:
    assert "\n".join(ROWS) in PAGE, "print it with: python -m tests.core.test_dialect_docs"


def test_every_variable_that_is_read_is_in_the_page() -> None:
    assert all(f"`{name}" in PAGE or f"`…{name.removeprefix('ALIYUN_COM_GPU_MEM')}" in PAGE for name in VARIABLES)


if __name__ == "__main__":
    print("\n".join(ROWS))
