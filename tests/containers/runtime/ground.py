"""A launcher as `mpsd install` writes it, a bundle, and a next runtime that writes down what it was
given."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mpsd.containers.engines.launcher import launcher

_CHECKOUT = Path(__file__).parents[3]
_NEXT = f"""#!{sys.executable} -ISX utf8
import json, os, sys
def after(*flags):
    return next((word for at, word in enumerate(sys.argv) if sys.argv[at - 1] in flags), "")
bundle, process = after("-b", "--bundle"), after("-p", "--process")
environ = open("/proc/self/environ").read().split("\\0")
said = {{
    "argv": sys.argv,
    "pid": os.getpid(),
    "environ": dict(entry.split("=", 1) for entry in environ if entry),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
    "config": open(bundle + "/config.json").read() if bundle else "",
    "process": open(process).read() if process else "",
}}
json.dump(said, open({{said!r}}, "w"))
"""


@dataclass(frozen=True)
class Ended:
    code: int
    said: str
    pid: int


class Ground:
    """Everything lies below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_directory = folder / "mpsd"
        self.log = folder / "log" / "runtime.log"
        self.bundle = folder / "bundle"
        self.config = self.bundle / "config.json"
        self.root = folder / "root"
        self.program = folder / "mpsd-runtime"
        self._said = folder / "next.json"
        self.following = following = folder / "next-runtime"
        following.write_text(_NEXT.replace("{said!r}", repr(str(self._said))))
        following.chmod(0o755)
        text = launcher(
            sys.executable, str(_CHECKOUT), str(self.run_directory), str(following), str(self.log)
        )
        self.program.write_text(text)
        self.program.chmod(0o755)
        self.bundle.mkdir()
        self.root.mkdir()

    def write(self, *environment: str, **fields: object) -> bytes:
        """A config.json with this environment. Returns what is in it."""
        process = {"args": ["true"], "cwd": "/", "env": ["PATH=/bin", *environment]}
        self.config.write_text(
            json.dumps({"ociVersion": "1.0.2", "process": process, "x": {"kept": [1.5]}} | fields)
        )
        return self.config.read_bytes()

    def call(self, *argv: str, stdin: bytes = b"", **options: object) -> Ended:
        program = subprocess.Popen(
            [self.program, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **options,  # type: ignore[call-overload]
        )
        said, _ = program.communicate(stdin, timeout=50)
        return Ended(program.returncode, said.decode(), program.pid)

    def create(self, *options: str, container: str = "c1") -> Ended:
        return self.call(
            "--root", str(self.root), "create", "--bundle", str(self.bundle), *options, container
        )

    @property
    def heard(self) -> dict[str, object] | None:
        """What the next runtime was given; None where it was not reached."""
        return json.loads(self._said.read_text()) if self._said.exists() else None

    @property
    def edited(self) -> dict[str, object]:
        return json.loads(self.config.read_text())

    @property
    def events(self) -> list[dict[str, object]]:
        return (
            [json.loads(line) for line in self.log.read_text().splitlines()]
            if self.log.exists()
            else []
        )

    def hold(self, container: str) -> None:
        """The state that runc keeps of a container made from this bundle."""
        folder = self.root / container
        folder.mkdir()
        state = {"id": container, "config": {"labels": ["x=y", f"bundle={self.bundle}"]}}
        state |= {"init_process_pid": 4711, "init_process_start": 815}
        (folder / "state.json").write_text(json.dumps(state))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
