"""What a program of its own writes."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def captured(
    argv: Sequence[str | Path], *, check: bool = True, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Once it has ended; an error where it fails, unless that is to be looked at."""
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60, **more}
    return subprocess.run(argv, check=check, **how)
