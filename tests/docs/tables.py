"""Tables of a page whose facts are printed from code, and whose words are people's.

A table stands between two marks of its name; what people wrote behind the code's columns is kept by
the row's first one.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """name: of the marks. heads: of the columns that `rows` gives. words: heads of those that
    people fill."""

    name: str
    page: str
    heads: Row
    rows: Callable[[], Sequence[Row]]
    words: Row = ()

    def printed(self, text: str) -> str:
        """The page with this table as it must be. LookupError where the page has no place for
        it."""
        before, marks, after = self._parts(text)
        start, inside, end = marks
        kept = _words_by_key(inside, len(self.words))
        heads = (*self.heads, *self.words)
        lines = [_line(heads), _line(("---",) * len(heads))]
        lines += [_line((*row, *kept.get(row[0], ("",) * len(self.words)))) for row in self.rows()]
        return f"{before}{start}\n" + "\n".join(lines) + f"\n{end}{after}"

    def wordless(self, text: str) -> list[str]:
        """That somebody has yet to say something about."""
        _before, (_start, inside, _end), _after = self._parts(text)
        words = _words_by_key(inside, len(self.words))
        return [
            row[0] for row in self.rows() if not all(words.get(row[0], ("",) * len(self.words)))
        ]

    def _parts(self, text: str) -> tuple[str, tuple[str, str, str], str]:
        name = re.escape(self.name)
        match = re.search(
            rf"(<!-- printed: {name} -->)\n(.*?)(<!-- end: {name} -->)", text, re.DOTALL
        )
        if not match:
            raise LookupError(
                f"{self.page} has no marks <!-- printed: {self.name} --> and <!-- end:"
                f" {self.name} -->"
            )
        return text[: match.start()], (match[1], match[2], match[3]), text[match.end() :]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _words_by_key(lines: str, count: int) -> dict[str, Row]:
    """What stands in the last columns, by the first."""
    if not count:
        return {}
    cells = (
        re.split(r"(?<!\\)\|", line.strip().strip("|"))
        for line in lines.splitlines()
        if line.startswith("|")
    )
    stripped = [[cell.strip() for cell in row] for row in cells]
    return {row[0]: tuple(row[-count:]) for row in stripped if len(row) > count}
