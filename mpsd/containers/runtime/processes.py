"""A container's later processes, signals and end: `exec --process FILE`, `kill`, `delete --force`,
and the poststop hook `over`. A process file lacks the grant's variables, so it gets those that hold
now; `exec` without one has the container's, and the watchdog sees an `--env` after it. Before a
signal mpsd ends clients of MPS that would die of it; whatever it answers, the signal follows.
`over` never fails, and is quick."""

import _signal  # type: ignore[import-not-found]  # `signal` itself builds enums for 5 ms
import os
import select
import time

from mpsd.containers.runtime import bundle, command_line, json_text
from mpsd.containers.runtime.client import ask, refusal
from mpsd.containers.runtime.client import environment as variables_of
from mpsd.containers.runtime.command_line import CommandLine
from mpsd.containers.runtime.json_text import ContainerRefused, inner, table, text, texts
from mpsd.containers.runtime.log import RuntimeLog

_LABEL = "bundle="  # in runc's state
# in the environment of every container that was given a share, by whomever
_ON_MPS = "CUDA_MPS_PIPE_DIRECTORY"
_OK = 200


def prepare(process: str, line: CommandLine) -> None:
    """Refused, with the file as it was."""
    kept = _kept(line.root, line.container)
    if kept is None:
        return
    path, slash, name = process.rpartition("/")
    folder = bundle.open_folder(path or slash, "the folder of --process")
    try:
        holder = table(json_text.read(bundle.read(folder, name, process), process), process)
        entries = texts(holder, "env", process)
        variables = _variables(kept, line)
        holder["env"] = bundle.replaced(entries, variables)
        bundle.replace(folder, name, json_text.write(holder, process))
    except FileNotFoundError:
        raise ContainerRefused(f"{process} is not there; name a file with --process") from None
    finally:
        os.close(folder)
    RuntimeLog(line).event("exec", environment=variables)


def _variables(kept: bundle.BundleRecord, line: CommandLine) -> dict[str, str]:
    """Those that hold now; without an answer those at its creation. Refused."""
    try:
        asked = {"root": line.root, "id": line.container}
        status, body = ask(
            line.run_directory, "/v1/containers/environment", asked, answer_s=5.0, patience_s=0.0
        )
        if status == _OK:
            return variables_of(table(body, "mpsd's answer"))
    except ContainerRefused:
        pass
    if (kept.root, kept.container) != (line.root, line.container):
        why = "mpsd does not answer, and the bundle belongs to another container now"
        raise ContainerRefused(f"{why}; start it with `mpsd up`")
    return kept.environment


def _kept(root: str, container: str) -> bundle.BundleRecord | None:
    """None: nothing, or there is no such container."""
    state = _found_state(root, container)
    if not state.bundle:
        return None
    try:
        folder = bundle.open_folder(state.bundle, "the bundle")
    except ContainerRefused:
        return None
    try:
        return bundle.read_record(folder)
    finally:
        os.close(folder)


class _FoundState:
    """A runtime's state of a container. bundle: its folder, or empty. pid, start_ticks: of its
    first process, or 0."""

    def __init__(self, bundle: str = "", pid: object = 0, start_ticks: object = 0) -> None:
        self.bundle = bundle
        self.pid = pid if isinstance(pid, int) else 0
        self.start_ticks = start_ticks if isinstance(start_ticks, int) else 0


def _found_state(root: str, container: str) -> _FoundState:
    """Refused."""
    if "/" in container or container in {"", ".", ".."}:
        return _FoundState()
    try:
        folder = bundle.open_folder(f"{root}/{container}", "the state")
    except ContainerRefused:
        return _FoundState()
    try:
        for name in ("state.json", "status"):  # runc's and crun's
            try:
                state = table(json_text.read(bundle.read(folder, name, name), name), name)
            except FileNotFoundError:
                continue
            for label in texts(inner(state, "config", name), "labels", name):
                if label.startswith(_LABEL):
                    first = state.get("init_process_pid"), state.get("init_process_start")
                    return _FoundState(label.removeprefix(_LABEL), *first)
            first = state.get("pid"), state.get("process-start-time")
            return _FoundState(text(state, "bundle", name), *first)
        return _FoundState()
    finally:
        os.close(folder)


# -- before a signal

_LONGEST_END_S = 13.0  # of an mpsd that hangs: the longest drain of any policy, and what follows


def before_signal(line: CommandLine) -> bool:
    """Returns once the signal may be sent, at once where mpsd has no part in it. False where the
    container is over by then, and a `kill` would find nobody."""
    options = command_line.of_signal(line.arguments)
    signum = _signum(line.command, options)
    if not signum or not options.words:
        return True
    line.container = options.words[0]
    said: dict[str, object] = {"signal": signum}
    is_over = False
    try:
        state = _found_state(line.root, line.container)
        if not state.bundle or not _is_on_mps(state.bundle):
            return True
        asked = {
            "root": line.root,
            "id": line.container,
            "signum": signum,
            "to_all": "all" in options.values,
            "pid": state.pid,
            "start_ticks": state.start_ticks,
        }
        status, answer = ask(
            line.run_directory, "/v1/containers/end", asked, _LONGEST_END_S, patience_s=0.0
        )
        if status != _OK:
            raise refusal(status, answer)
        found = table(answer, "mpsd's answer")
        said["ended"], is_over = found.get("ended"), found.get("is_over") is True
    except (ContainerRefused, OSError) as error:
        said["reasons"] = [str(error)]
    RuntimeLog(line).event("signal", **said)
    return not is_over or line.command == "delete" or "all" in options.values


def _is_on_mps(path: str) -> bool:
    """Refused, FileNotFoundError."""
    folder = bundle.open_folder(path, "the bundle")
    try:
        name = bundle.CONFIG
        config = table(json_text.read(bundle.read(folder, name, name), name), name)
        entries = texts(inner(config, "process", name), "env", name)
        return any(bundle.name_of(entry) == _ON_MPS for entry in entries)
    finally:
        os.close(folder)


def _signum(command: str, options: command_line.Options) -> int:
    """The number of the signal; 0 for none, and for one that only the next runtime knows."""
    if "regex" in options.values or "help" in options.values:
        return 0
    if command == "delete":
        return int(_signal.SIGKILL) if "force" in options.values else 0
    word = "TERM"
    if len(options.words) > 1:
        word = options.words[1]
    if word.isdecimal():
        return int(word)
    name = word.upper().removeprefix("SIG")
    if not name.isalnum():  # such as _BLOCK
        return 0
    return int(getattr(_signal, f"SIG{name}", 0))


# -- the poststop hook: mpsd would notice the container's end by itself too

_DEADLINE_S = 3.0
_LONGEST_STATE = 1024**2  # bytes
_STATE = "the container's state"


def over(line: CommandLine) -> None:
    end = time.monotonic() + _DEADLINE_S
    reasons: dict[str, object] = {}
    try:
        line.container = text(table(json_text.read(_state(end), _STATE), _STATE), "id", _STATE)
        left = max(end - time.monotonic(), 0.0)
        asked = {"root": line.root, "id": line.container}
        ask(line.run_directory, "/v1/containers/over", asked, left, patience_s=0.0)
    except (ContainerRefused, OSError) as error:
        reasons = {"reasons": [str(error)]}
    RuntimeLog(line).event("over", **reasons)


def _state(end: float) -> bytes:
    data = bytearray()
    while select.select([0], [], [], max(end - time.monotonic(), 0.0))[0]:
        piece = os.read(0, 65536)
        if not piece:
            return bytes(data)
        data += piece
        if len(data) > _LONGEST_STATE:
            raise ContainerRefused(f"{_STATE} has more than {_LONGEST_STATE} bytes")
    raise ContainerRefused(f"{_STATE} was not written within {_DEADLINE_S:g} s")
