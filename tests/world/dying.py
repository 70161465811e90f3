"""Tasks of mpsd's processes that raise what nobody expects, and how the process ends then."""

import json
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

    def is_told(self, program: str, errors: str) -> None:
        """One line names it, and the log has the traceback. errors: the log as JSON, among them."""
        lines = errors.splitlines()
        plain = [line for line in lines if not line.startswith("{")]
        assert plain == [f"{program}: {self.task or str(self)}: RuntimeError: {MESSAGE}"], errors
        logged = [json.loads(line) for line in lines if line.startswith("{")]
        (said,) = [line for line in logged if line["event"] == "process ends"]
        assert "Traceback" in said["exception"]
