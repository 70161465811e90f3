"""Tasks of mpsd's processes that raise what nobody expects, and how the process ends then."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.world.raising.sitecustomize import MESSAGE

_FOLDER = Path(__file__).with_name("raising")


@dataclass(frozen=True)
class Raised:
    """function: of mpsd, `module:name`. task: as the last line names it, where it is not that."""

    function: str
    task: str = ""

    def __str__(self) -> str:
        return self.function.partition(":")[2]

    def environment(self, file: Path) -> Mapping[str, str]:
        """file: it raises once this is there."""
        return {"PYTHONPATH": str(_FOLDER), "TESTS_RAISES": f"{self.function} {file}"}

    def last_line(self, program: str) -> str:
        return f"{program}: {self.task or str(self)}: RuntimeError: {MESSAGE}"
