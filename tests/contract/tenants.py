"""A pod's view of the client directory: mounted read-only, with namespaces and shared memory of
its own."""

from dataclasses import dataclass
from pathlib import Path

from tests.contract.platforms import Program

_ENTER = """
set -e
mount --bind "$1" "$2"
mount -o remount,bind,ro "$2"
mount -t tmpfs tmpfs /dev/shm
shift 2
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class ReadOnlyMount:
    """A directory as one container sees it, at another place. Takes root to make."""

    source: Path
    target: Path

    @property
    def name(self) -> str:
        return f"{self.source.name} mounted read-only"

    def inside(self, program: Program) -> Program:
        """The program in a container; its process is the first of its pid namespace."""
        as_user = []
        if "user" in program.options:
            as_user = [
                f"--reuid={program.options['user']}",
                f"--regid={program.options['group']}",
                "--clear-groups",
            ]
        return Program(
            (
                "unshare",
                "--mount",
                "--ipc",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                *("sh", "-c", _ENTER, "sh", str(self.source), str(self.target)),
                *(("setpriv", *as_user) if as_user else ()),
                *program.argv,
            )
        )
