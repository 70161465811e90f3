"""What mpsd-runtime and runc do together, played by one process that a test leads step by step.

One rule: it asks as mpsd-runtime does, in its own name, and keeps the state of what it makes as
runc does; the container is a real process in a real cgroup, without a root of its own.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mpsd.model.cuda_limit_parser import PIPE_DIRECTORY
from mpsd.platform import local_api, processes
from tests.whole.machine.machine import Machine, Program, eventually

_TREE = Path("/sys/fs/cgroup")
_TOP = _TREE if (_TREE / "cgroup.procs").exists() else _TREE / "pids"


class ContainerCgroup:
    """A cgroup that a container has to itself."""

    def __init__(self, name: str) -> None:
        self.folder = _TOP / f"mpsd-test-{os.getpid()}-{name}"
        self.folder.mkdir()

    def take_in(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        eventually(self._is_removed, "the container's cgroup is empty")

    def _is_removed(self) -> bool:
        with suppress(OSError):
            self.folder.rmdir()
        return not self.folder.exists()


class Played:
    """One container, from before it is asked for. root: where its runtime keeps states."""

    def __init__(self, machine: Machine, root: Path, name: str, cgroup: ContainerCgroup) -> None:
        self.machine = machine
        self.name = name
        self.cgroup = cgroup
        self.state = root / name / "state.json"
        self._root = root
        self._runtime: subprocess.Popen[str] | None = None
        self.answer: Mapping[str, Any] = {}

    # -- its runtime ------------------------------------------------------------------------------

    def ask(self, environment: Mapping[str, str], **fields: object) -> int:
        """Starts its runtime, which asks; the status that it is answered, with the answer in
        `answer`."""
        asks = {
            "root": str(self._root),
            "id": self.name,
            "name": "",
            "environment": dict(environment),
        } | fields
        self._forget_runtime()
        self._runtime = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.whole.machine.oci_player",
                str(self.machine.run_directory),
                json.dumps(asks),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.machine.environment,
            cwd=Path(__file__).parents[3],
        )
        told = self._heard()
        self.answer = told["answer"]
        return int(told["status"])

    def make(self, *command: str, **changed: str) -> int:
        """The runtime makes the container, which runs this under its grant: its first process.
        changed: variables that the tenant has put in place of mpsd's."""
        words = [str(self.machine.program("sim-cuda")), *command]
        made = {
            "command": words,
            "changed": changed,
            "procs": str(self.cgroup.folder / "cgroup.procs"),
        }
        self._say(made | {"state": str(self.state)})
        return int(self._heard()["first"])

    def end_runtime(self) -> None:
        """As `runc create` ends once the container is there."""
        assert self._runtime
        assert self._runtime.stdin
        self._runtime.stdin.close()
        assert self._runtime.wait(30) == 0
        self._forget_runtime()

    def kill_runtime(self) -> None:
        assert self._runtime
        self._runtime.kill()
        self._forget_runtime()

    def _forget_runtime(self) -> None:
        if self._runtime:
            for pipe in (self._runtime.stdin, self._runtime.stdout):
                if pipe:
                    pipe.close()
            self._runtime.wait(30)
            self._runtime = None

    @property
    def runtime_pid(self) -> int:
        assert self._runtime
        return self._runtime.pid

    def _say(self, what: Mapping[str, object]) -> None:
        assert self._runtime
        assert self._runtime.stdin
        self._runtime.stdin.write(json.dumps(what) + "\n")
        self._runtime.stdin.flush()

    def _heard(self) -> Mapping[str, Any]:
        assert self._runtime
        assert self._runtime.stdout
        line: Mapping[str, Any] = json.loads(self._runtime.stdout.readline())
        return line

    # -- what others do with it -------------------------------------------------------------------

    def held(self, environment: Mapping[str, str], *command: str) -> int:
        """Asked for, made, and its runtime gone: its first process, which holds a context."""
        assert self.ask(environment) == 201, self.answer
        first = self.make(*command, "hold")
        self.end_runtime()
        return first

    def entered(self, *command: str, **changed: str) -> Program:
        """As `docker exec`: a program in the container that does not descend from its first
        process."""
        there = self.cgroup.folder / "cgroup.procs"
        script = f'echo $$ >{there} && exec "$@"'
        words = ["sh", "-c", script, "sh", str(self.machine.program("sim-cuda")), *command]
        return self.machine.start(words, variables_of(self.answer) | changed)

    def told(self, what: str) -> tuple[int, Mapping[str, Any]]:
        """What mpsd answers to `over` or `environment` of this container."""
        body = {"root": str(self._root), "id": self.name}
        status, text = local_api.ask(
            self.machine.run_directory / "mpsd.sock", "POST", f"/v1/containers/{what}", body
        )
        return status, json.loads(text)

    def delete(self) -> None:
        """As the runtime does it: its processes end, and then its state goes."""
        for pid in (self.cgroup.folder / "cgroup.procs").read_text().split():
            found = processes.identity_of(int(pid))
            if found:
                processes.send_signal(found, signal.SIGKILL)
        eventually(
            lambda: not (self.cgroup.folder / "cgroup.procs").read_text(),
            "its processes have ended",
        )
        self.state.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self.state.parent.rmdir()

    def remove(self) -> None:
        if self._runtime:
            self.kill_runtime()
        self.cgroup.remove()


def variables_of(answer: Mapping[str, Any]) -> dict[str, str]:
    """Those of a process that sees mpsd's folder where the machine has it, having no root of its
    own."""
    (client,) = (
        mount["source"] for mount in answer["mounts"] if mount["inside"] == answer_pipe(answer)
    )
    return dict(answer["environment"]) | {PIPE_DIRECTORY: client}


def answer_pipe(answer: Mapping[str, Any]) -> str:
    return str(answer["environment"][PIPE_DIRECTORY])


@contextmanager
def played(machine: Machine, root: Path, *names: str) -> Iterator[list[Played]]:
    """Containers that nothing was asked for yet; nothing of them is left."""
    made: list[Played] = []
    try:
        for name in names:
            made.append(Played(machine, root, name, ContainerCgroup(name)))  # noqa: PERF401  # removed one by one
        yield made
    finally:
        for container in made:
            container.remove()


def _main(run_directory: str, asks: str) -> None:
    """The runtime's own process."""
    status, body = local_api.ask(
        Path(run_directory) / "mpsd.sock", "POST", "/v1/containers", json.loads(asks)
    )
    answer = json.loads(body) if body[:1] == b"{" else {"said": body.decode()}
    print(json.dumps({"status": status, "answer": answer}), flush=True)
    for line in sys.stdin:
        made = json.loads(line)
        variables = {**os.environ, **variables_of(answer), **made["changed"]}
        first = subprocess.Popen(
            ["sh", "-c", 'read go; exec "$@"', "sh", *made["command"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=variables,
            start_new_session=True,
        )
        Path(made["procs"]).write_text(str(first.pid))
        found = processes.identity_of(first.pid)
        assert found
        assert first.stdin
        _write_state(Path(made["state"]), found.pid, found.start_ticks)
        first.stdin.write(b"\n")
        first.stdin.close()
        print(json.dumps({"first": first.pid}), flush=True)


def _write_state(state: Path, pid: int, start_ticks: int) -> None:
    state.parent.mkdir(parents=True, exist_ok=True)
    beside = state.with_name("state-new")
    beside.write_text(
        json.dumps(
            {"id": state.parent.name, "init_process_pid": pid, "init_process_start": start_ticks}
        )
    )
    beside.replace(state)


if __name__ == "__main__":
    _main(*sys.argv[1:])
