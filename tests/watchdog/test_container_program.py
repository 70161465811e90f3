"""A program in a container is started by the container's own runtime, and ends at its deadline with
all that it is."""

import asyncio
import os
from pathlib import Path

import pytest

from mpsd.grants.kept import ContainerGrant
from mpsd.model.identity import HostContainer, ProcessIdentity
from mpsd.platform import processes
from mpsd.watchdog.oom_scripts import run_in_container
from tests.whole.machine.machine import eventually

# Writes the pid of what it starts as runc does, and waits for it.
_RUNTIME = """#!/bin/sh
printf '%s\\n' "$@" >{said}
while [ "$1" != --pid-file ]; do shift; done
for program; do :; done
"$program" &
echo $! >"$2"
wait $!
"""


def granted(runtime: str) -> ContainerGrant:
    holder = HostContainer("/r", "c1", "train", ProcessIdentity(1, 1, "boot"), is_made=True)
    return ContainerGrant("g", "gpu0", (), 100, 1, holder, "train", runtime=runtime)


class Runtime:
    def __init__(self, folder: Path, program: str) -> None:
        self.said, self.pid_file = folder / "said", folder / "pid"
        path, self.program = folder / "runtime", folder / "program"
        path.write_text(_RUNTIME.format(said=self.said))
        self.program.write_text(program)
        path.chmod(0o755)
        self.program.chmod(0o755)
        self._grant = granted(str(path))

    def run(self, deadline_s: float) -> int | None:
        variables = {"A": "1 2", "B": "3"}
        return asyncio.run(
            run_in_container(self._grant, str(self.program), variables, self.pid_file, deadline_s)
        )


def test_the_runtime_is_given_the_program_and_its_variables_and_no_shell(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path, "#!/bin/sh\nexit 7\n")
    assert runtime.run(30) == 7
    words = [
        "--root",
        "/r",
        "exec",
        "--pid-file",
        str(runtime.pid_file),
        "--env",
        "A=1 2",
        "--env",
        "B=3",
    ]
    assert runtime.said.read_text().splitlines() == [*words, "c1", str(runtime.program)]
    assert not runtime.pid_file.exists()


def test_at_its_deadline_the_program_is_ended_and_not_only_its_runtime(tmp_path: Path) -> None:
    pid = tmp_path / "pid-inside"
    runtime = Runtime(
        tmp_path, f"#!/bin/sh\necho $$ >{pid}.new; mv {pid}.new {pid}\nexec sleep 600\n"
    )
    assert runtime.run(2) is None
    left = int(eventually(lambda: pid.exists() and pid.read_text(), "the program has started"))
    eventually(lambda: processes.identity_of(left) is None, "the program is gone")


def test_a_runtime_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    grant = granted(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        asyncio.run(run_in_container(grant, "/oom.sh", {}, tmp_path / "pid", 1))


def test_a_process_knows_itself_by_the_pid_of_its_own_namespace() -> None:
    assert processes.pid_inside(os.getpid()) == os.getpid()
    assert processes.pid_inside(2**22 + 1) == 0
