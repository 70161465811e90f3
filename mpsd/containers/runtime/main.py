"""`mpsd-runtime`: an OCI runtime in front of runc, for containers that ask for a share of a GPU by their environment.

One rule: what it does not decide about it hands to the next runtime as it came, and a container that asks for a share
and does not get it is not created.
"""

import os
import sys

from mpsd.containers.runtime import command_line
from mpsd.containers.runtime import command_line as next_program
from mpsd.containers.runtime.command_line import CommandLine
from mpsd.containers.runtime.json_text import ContainerRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mpsd.containers.runtime.runtime_log import RuntimeLog

_INTERRUPTED = 130  # as mpsd.platform.imports.INTERRUPTED; nothing of the command line is imported here
_HELP = """\
mpsd-runtime: an OCI runtime in front of another. Where a container's environment asks for a share of a GPU
(ALIYUN_COM_GPU_MEM_CONTAINER, GPU_MEM_PER_DEVICE, EGPU and others: `mpsd explain --env`), it asks `mpsd up` for it, and
writes the grant into the bundle before the next runtime makes the container. All else is the next runtime's.

    mpsd-runtime [--next PROGRAM] [--run-dir DIR] [--runtime-log FILE] GLOBAL-OPTION... COMMAND ...

    --next PROGRAM      the next runtime (now: {next})
    --run-dir DIR       where `mpsd up` listens, in mpsd.sock (now: {run_directory})
    --runtime-log FILE  one JSON line an event (now: {log})
    --help-mpsd         this text alone

    docker run --runtime=mpsd -e ALIYUN_COM_GPU_MEM_CONTAINER=6 -e ALIYUN_COM_GPU_MEM_DEV=15 IMAGE   6 GiB of a card
"""


def main(
    argv: list[str] | None = None,
    *,
    run_directory: str = "/run/mpsd",
    next_runtime: str = "",
    log: str = "/var/log/mpsd/runtime.log",
) -> int:
    """The exit code; where all is well this process becomes the next runtime, and nothing is returned.

    argv: without the program's name. The others are what the installation chose; flags come before them.
    """
    line = command_line.read(sys.argv[1:] if argv is None else argv)
    line.own = {"run-dir": run_directory, "next": next_runtime, "runtime-log": log} | {
        name: value for name, value in line.own.items() if value
    }
    try:
        return _run(line)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(line: CommandLine) -> int:
    if line.command == "over":
        from mpsd.containers.runtime.processes import over

        over(_root(line, ""), line.own["run-dir"], line.own["runtime-log"])
        return 0
    if line.wants_own_help:
        _show_help(line)
        return 0
    try:
        following = next_program.find(line.own["next"])
        line.root = _root(line, following)
        if line.command in {"create", "run"}:
            _create(line, following)
        elif line.command == "exec":
            _exec(line)
        elif line.wants_help:
            _show_help(line)
    except ContainerRefused as refused:
        return _give_up(line, refused)
    except OSError as error:
        return _give_up(
            line, ContainerRefused(f"{error.filename or line.command}: {error.strerror}; see that it can be written")
        )
    return _give_up(line, next_program.become(following, line.passed))


def _create(line: CommandLine, following: str) -> None:
    """Refused; OSError where the bundle cannot be written."""
    options = command_line.of_create(line.arguments)
    if "help" in options.values or len(options.words) != 1:
        return  # the next runtime says what is wrong with it
    line.container = options.words[0]
    if "config" in options.values:
        raise ContainerRefused("mpsd-runtime reads no other file than the bundle's config.json; leave --config out")
    from mpsd.containers.runtime import create

    hook = [*_own_command(), "--run-dir", line.own["run-dir"], "--runtime-log", line.own["runtime-log"]]
    hook += ["--root", line.root, "over"]
    asker = create.BundleOwner(line.root, line.container, line.own["run-dir"], _log(line), hook, following)
    create.prepare(options.values.get("bundle", ""), asker)


def _exec(line: CommandLine) -> None:
    """Refused; OSError where the process file cannot be written."""
    options = command_line.of_exec(line.arguments)
    if "process" not in options.values or "help" in options.values or not options.words:
        return
    line.container = options.words[0]
    from mpsd.containers.runtime import processes as exec_process

    exec_process.prepare(line.root, line.container, options.values["process"], line.own["run-dir"], _log(line))


def _root(line: CommandLine, following: str) -> str:
    """Where the next runtime keeps its containers' state."""
    given = line.options.get("root", "")
    if given:
        return os.path.abspath(given)
    name = "crun" if following.endswith("/crun") else "runc"
    own = os.environ.get("XDG_RUNTIME_DIR", "") if os.geteuid() else ""
    return f"{own or '/run'}/{name}"


def _log(line: CommandLine) -> "RuntimeLog":
    from mpsd.containers.runtime.runtime_log import RuntimeLog

    return RuntimeLog(line.own["runtime-log"], line.root, line.container)


def _own_command() -> list[str]:
    """How this program is started, as a hook must say it: by its whole path."""
    path = os.path.abspath(sys.argv[0])
    if os.access(path, os.X_OK):
        return [path]
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    start = f"import sys; sys.path.append({folder!r}); from mpsd.runtime.main import main; sys.exit(main())"
    return [sys.executable, "-ISc", start]


def _give_up(line: CommandLine, refused: ContainerRefused) -> int:
    from mpsd.containers.runtime import runtime_log

    subject = f"container {line.container}: " if line.container else ""
    for reason in refused.reasons:
        runtime_log.tell(subject + reason)
    text = f"mpsd-runtime: {subject}{refused}"
    runtime_log.report_error(line.options.get("log", ""), line.options.get("log-format", ""), text)
    if line.container:
        _log(line).event("refused", reasons=list(refused.reasons))
    return refused.exit_code


def _show_help(line: CommandLine) -> None:
    own = line.own
    shown = _HELP.format(
        next=own["next"] or "nvidia-container-runtime where there is one, else runc",
        run_directory=own["run-dir"],
        log=own["runtime-log"],
    )
    os.write(1, (shown + ("\n" if line.wants_help else "")).encode())
