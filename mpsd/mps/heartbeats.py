"""When the processes on each GPU were scanned last: `mpsd control` lets no container start on one
that nobody watches."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

STALE_S = 1.5
_FOLDER = "heartbeats"  # of the run directory; a file for each GPU, empty: a full disk takes it too


class Heartbeats:
    """The modification time of a GPU's file is seconds of CLOCK_BOOTTIME."""

    def __init__(self, run_directory: Path) -> None:
        self._folder = run_directory / _FOLDER

    def _file(self, gpu: str) -> Path:
        return self._folder / gpu.replace("/", "_")  # of a MIG instance, in old drivers

    def beat(self, gpu: str, now_s: float) -> None:
        """OSError."""
        file = self._file(gpu)
        try:
            os.utime(file, (now_s, now_s))
        except FileNotFoundError:
            with suppress(FileNotFoundError):  # another has ended meanwhile: at the next scan
                self._folder.mkdir(mode=0o755, exist_ok=True)
                file.touch(mode=0o600)
                os.utime(file, (now_s, now_s))

    def end(self) -> None:
        """Nobody scans from now on."""
        for file in self._folder.glob("*"):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # another has begun
            self._folder.rmdir()

    def last_s(self, gpu: str) -> float | None:
        """None where nobody has scanned it."""
        with suppress(OSError):
            return self._file(gpu).stat().st_mtime
        return None

    def why_unwatched(self, gpus: Collection[str], since_s: float, now_s: float) -> str:
        """Empty where all of them are watched. since_s: a GPU that was not scanned yet has time
        from then on."""
        for gpu in sorted(gpus):
            last_s = max(self.last_s(gpu) or 0.0, since_s)
            if not 0.0 <= now_s - last_s <= STALE_S:
                return f"nobody watches the processes on {gpu}: no look at them ended in time"
        return ""
