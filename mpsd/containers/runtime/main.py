"""`mpsd-runtime`: an OCI runtime in front of runc, for containers that request a share of a GPU. A
container that requests a share and does not get it is not created."""

import os
import sys
from _signal import (  # type: ignore[import-not-found]  # `signal` itself builds enums for 5 ms
    SIG_DFL,
    SIGPIPE,
    SIGXFSZ,
    signal,
)

from mpsd.containers.dialects.names import NEXT_RUNTIMES
from mpsd.containers.runtime import command_line
from mpsd.containers.runtime.command_line import CommandLine
from mpsd.containers.runtime.json_text import ContainerRefused

_HELP = """\
mpsd-runtime: an OCI runtime in front of another. Where a container's environment requests a share
of a GPU (ALIYUN_COM_GPU_MEM_CONTAINER, GPU_MEM_PER_DEVICE, EGPU and others: `mpsd explain --env`),
it asks `mpsd up` for it and writes the grant into the bundle before the next runtime creates the
container. Before `kill` and `delete --force` it has `mpsd up` end the container's clients of MPS
that would die of the signal. All else is the next runtime's.

    mpsd-runtime [--next PROGRAM] [--run-dir DIR] [--runtime-log FILE] GLOBAL-OPTION... COMMAND ...

    --next PROGRAM      the next runtime (now: {next})
    --run-dir DIR       where `mpsd up` listens, in mpsd.sock (now: {run_directory})
    --runtime-log FILE  one JSON line an event (now: {log})
    --help-mpsd         this text alone

6 GiB of a card of 15:

    docker run --runtime=mpsd -e ALIYUN_COM_GPU_MEM_CONTAINER=6 -e ALIYUN_COM_GPU_MEM_DEV=15 IMAGE
"""


def main(
    argv: list[str] | None = None,
    *,
    run_directory: str = "/run/mpsd",
    next_runtime: str = "",
    log: str = "/var/log/mpsd/runtime.log",
) -> int:
    """The exit code; where all is well this process becomes the next runtime. argv: without the
    program's name. The others are the installation's; flags come before them."""
    line = command_line.read(sys.argv[1:] if argv is None else argv)
    line.own = {"run-dir": run_directory, "next": next_runtime, "runtime-log": log} | {
        name: value for name, value in line.own.items() if value
    }
    try:
        return _run(line)
    except KeyboardInterrupt:
        return 130  # as mpsd.platform.console.INTERRUPTED, which is slow to import


def _run(line: CommandLine) -> int:
    if line.command == "over":
        from mpsd.containers.runtime.processes import over

        line.root = _root(line, "")
        over(line)
        return 0
    if line.wants_own_help:
        _show_help(line)
        return 0
    try:
        following = find_next(line.own["next"])
        line.root = _root(line, following)
        if line.command in {"create", "run"}:
            _create(line, following)
        elif line.command == "exec":
            _exec(line)
        elif line.command in {"kill", "delete"} and not _may_signal(line):
            return 0
        elif line.wants_help:
            _show_help(line)
    except ContainerRefused as refused:
        return _give_up(line, refused)
    except OSError as error:
        what = f"{error.filename or line.command}: {error.strerror}"
        return _give_up(line, ContainerRefused(f"{what}; see that it can be written"))
    return _give_up(line, become(following, line.passed))


def _create(line: CommandLine, following: str) -> None:
    """Refused, OSError."""
    options = command_line.of_create(line.arguments)
    if "help" in options.values or len(options.words) != 1:
        return  # the next runtime says what is wrong with it
    line.container = options.words[0]
    if "config" in options.values:
        raise ContainerRefused(
            "mpsd-runtime reads no other file than the bundle's config.json; leave --config out"
        )
    from mpsd.containers.runtime import create

    hook = [*_own_command(), "--run-dir", line.run_directory]
    hook += ["--runtime-log", line.own["runtime-log"], "--root", line.root, "over"]
    create.prepare(options.values.get("bundle", ""), line, following, hook)


def _exec(line: CommandLine) -> None:
    """Refused, OSError."""
    options = command_line.of_exec(line.arguments)
    if "process" not in options.values or "help" in options.values or not options.words:
        return
    line.container = options.words[0]
    from mpsd.containers.runtime import processes

    processes.prepare(options.values["process"], line)


def _may_signal(line: CommandLine) -> bool:
    """False where the container is over by then."""
    from mpsd.containers.runtime import processes

    try:
        return processes.before_signal(line)
    except Exception as error:  # whatever it is, the container must get its signal
        from mpsd.containers.runtime import log

        log.warn(f"its clients of MPS are not ended first: {error}")
        return True


def _root(line: CommandLine, following: str) -> str:
    if given := line.options.get("root", ""):
        return os.path.abspath(given)
    name = "crun" if following.endswith("/crun") else "runc"
    own = os.geteuid() and os.environ.get("XDG_RUNTIME_DIR", "")
    return f"{own or '/run'}/{name}"


def _own_command() -> list[str]:
    """As a hook must say it, by its whole path."""
    path = os.path.abspath(sys.argv[0])
    if os.access(path, os.X_OK):
        return [path]
    folder = os.path.abspath(f"{__file__}/../../../..")
    start = (
        f"import sys; sys.path.append({folder!r}); from mpsd.runtime.main import main;"
        " sys.exit(main())"
    )
    return [sys.executable, "-ISc", start]


def _give_up(line: CommandLine, refused: ContainerRefused) -> int:
    from mpsd.containers.runtime import log

    subject = f"container {line.container}: " if line.container else ""
    for reason in refused.reasons:
        log.warn(subject + reason)
    text = f"mpsd-runtime: {subject}{refused}"
    log.report_error(line.options.get("log", ""), line.options.get("log-format", ""), text)
    if line.container:
        log.RuntimeLog(line).event("refused", reasons=list(refused.reasons))
    return refused.exit_code


def _show_help(line: CommandLine) -> None:
    following = line.own["next"] or "nvidia-container-runtime if it is installed, else runc"
    log = line.own["runtime-log"]
    shown = _HELP.format(next=following, run_directory=line.run_directory, log=log)
    if line.wants_help:
        shown += "\n"
    os.write(1, shown.encode())


# -- the next runtime, which this process becomes
# Pid, descriptors, environment and signals stay as they came.

# where the environment names none
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOT_FOUND = 127  # as a shell says it
_COERCED = b"LC_CTYPE"


def find_next(asked: str) -> str:
    """The program's path. asked: a path or a name, empty for the usual ones. Refused."""
    names = [asked] if asked else NEXT_RUNTIMES
    folders = os.environ.get("PATH", _PATH).split(":")
    for name in names:
        for folder in folders:
            path = name if "/" in name else f"{folder or '.'}/{name}"
            if os.access(path, os.X_OK) and not os.path.isdir(path):
                if _is_this_program(path):
                    raise ContainerRefused(
                        f"the next runtime {path} is mpsd-runtime itself; name another with --next"
                    )
                return path
    missing = " or ".join(names)
    raise ContainerRefused(
        f"the next runtime, {missing}, is not found; name one with --next", exit_code=_NOT_FOUND
    )


def become(path: str, arguments: list[str]) -> ContainerRefused:
    """Returns only where the program cannot be started, and why."""
    # Python ignores them, and what is ignored stays so in the next program
    for ignored in (SIGPIPE, SIGXFSZ):
        signal(ignored, SIG_DFL)
    try:
        os.execve(path, [path, *arguments], _environment())
    except OSError as error:
        why = f"the next runtime {path} cannot be started: {error.strerror}"
        return ContainerRefused(f"{why}; name one with --next", exit_code=126)


def _environment() -> dict[bytes, bytes]:
    """As it was before Python began, which adds LC_CTYPE where it finds the locale C (PEP 538)."""
    found = dict(os.environb)
    if _COERCED in found:
        try:
            with open("/proc/self/environ", "rb") as given:
                began = given.read().split(b"\0")
        except OSError:
            return found
        if not any(entry.startswith(_COERCED + b"=") for entry in began):
            del found[_COERCED]
    return found


def _is_this_program(path: str) -> bool:
    try:
        return os.path.samefile(path, sys.argv[0])
    except OSError:
        return False  # this one was not started from a file
