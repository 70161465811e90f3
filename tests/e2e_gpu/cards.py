"""The GPUs of this machine as nvidia-smi shows them, and that nobody has changed their settings."""

import shutil
import subprocess
from dataclasses import dataclass

# What an administrator sets. Nothing here may change one of them.
_SETTINGS = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "memory.total",
    "compute_mode",
    "persistence_mode",
    "ecc.mode.current",
    *("mig.mode.current", "power.limit", "clocks.max.sm", "clocks.max.memory", "accounting.mode"),
)


def nvidia_smi(*options: str) -> str:
    smi = shutil.which("nvidia-smi")
    if not smi:
        return ""
    done = subprocess.run([smi, *options], capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else ""


def cards_here() -> str:
    """A line each; empty where there is none."""
    return nvidia_smi(f"--query-gpu={','.join(_SETTINGS)}", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class Cards:
    """settings: from before; empty where they are another machine's, or simulated."""

    settings: str

    def assert_unchanged(self) -> None:
        now = cards_here()
        print(f"\nbefore:\n{self.settings}after:\n{now}")
        assert now == self.settings

    def names(self) -> list[str]:
        return [line.split(", ")[2] for line in self.settings.splitlines()]

    def driver(self) -> str:
        return self.settings.split(", ")[3] if self.settings else ""
