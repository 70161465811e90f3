"""The files of one domain.

One rule: every path of a domain is written here and nowhere else.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

LONGEST_SOCKET_PATH = 107  # sun_path of unix(7), without its closing zero


@dataclass(frozen=True, slots=True)
class DomainFolder:
    """Where a domain's files are: pipe/ is mpsd's alone, client/ holds the one socket that programs may reach.

    gate: there while the domain serves. drain: there while the agent asks for a drain; it outlives a stop of mpsd.
    """

    path: Path

    @property
    def pipe(self) -> Path:
        return self.path / "pipe"

    @property
    def client(self) -> Path:
        return self.path / "client"

    @property
    def log(self) -> Path:
        return self.path / "log" / "control.log"

    @property
    def record(self) -> Path:
        return self.path / "record.json"

    @property
    def commands(self) -> Path:
        return self.path / "commands.json"

    @property
    def limits(self) -> Path:
        return self.path / "limits.json"

    @property
    def gate(self) -> Path:
        return self.path / "gate"

    @property
    def drain(self) -> Path:
        return self.path / "drain.json"

    def make(self) -> None:
        """Makes what is not there yet, with its modes."""
        for folder, mode in ((self.path, 0o755), (self.pipe, 0o700), (self.client, 0o755), (self.log.parent, 0o700)):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    def clear(self, *, with_pipe: bool) -> None:
        """Removes what a stopped daemon leaves; client/ stays for containers that have it mounted, log/ for people."""
        if with_pipe:
            shutil.rmtree(self.pipe, ignore_errors=True)
        for file in (self.record, self.limits, self.commands):
            file.unlink(missing_ok=True)

    def longest_socket(self) -> Path:
        return self.pipe / "control_privileged"
