"""The page about metrics has the table that they are made by."""

from pathlib import Path

from mpsd.core.metrics_names import as_table

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_the_table_of_metrics_is_printed_from_them() -> None:
    assert as_table() in PAGE, "print it with: python -m tests.core.test_metrics_docs"


if __name__ == "__main__":
    print(as_table())
