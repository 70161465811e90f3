"""The clocks of a program, which a test sets: its Python reads how far they are ahead."""

from pathlib import Path

_SITE = """
import os, time
_wall, _gettime = time.time, time.clock_gettime

def _ahead(number):
    with open(os.environ["CLOCKS"]) as file:
        return float(file.read().split()[number])

def clock_gettime(which):
    return _gettime(which) + (_ahead(1) if which == time.CLOCK_BOOTTIME else 0.0)

time.time = lambda: _wall() + _ahead(0)
time.clock_gettime = clock_gettime
"""


class SetClocks:
    """environment: of the programs whose clocks these are."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clocks"
        (folder / "sitecustomize.py").write_text(_SITE)
        self.environment = {"PYTHONPATH": str(folder), "CLOCKS": str(self._file)}
        self.set()

    def set(self, wall_s: float = 0.0, boot_s: float = 0.0) -> None:
        """How far they are ahead of the kernel's."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{wall_s} {boot_s}")
        new.rename(self._file)
