"""`mpsd run`: a command under a grant."""

import os
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from mpsd.grants.rules.messages import (
    DIVIDE_S,
    GrantAnswer,
    ProgramRequest,
    Refusal,
    join_s,
)
from mpsd.platform import local_api
from mpsd.platform.command_line import RUN_DIR, Between, flag, option, takes
from mpsd.platform.console import ExitCode, complaints
from mpsd.platform.imports import INTERRUPTED
from mpsd.platform.settings import settings

_CREATED = 201
_STOPPING = 410
_SECOND = 429  # of a user who has a request that waits
_MOST_GPUS = 64  # that are waited for
_ANSWER_GRACE_S = 10.0  # beyond --timeout, and what GPUs may take to be divided and joined


@takes(
    option("--gpu-mem", required=True, metavar="GIB", help="GiB of memory, CUDA's context too."),
    option("--gpu-core", metavar="PERCENT", help="Percent of threads: reservation and limit."),
    option("--gpus", metavar="N", help="GPUs that the request is divided over evenly."),
    flag("--wait", help="Join the queue when there is no room, instead of failing."),
    option("--timeout", type=Between(1), metavar="SECONDS", help="With --wait: give up after."),
    RUN_DIR,
    option(
        "command", nargs="...", metavar="-- CMD [ARG]...", help="The command and its arguments."
    ),
)
def run(
    *,
    command: list[str],
    gpu_mem: str,
    gpu_core: str | None = None,
    gpus: str = "1",
    wait: bool = False,
    timeout: float = 3600.0,
    run_dir: str | None = None,
) -> None:
    """Run a command with a share of a GPU, and free the share however the command ends.

    The exit code is the command's own. mpsd exits with 1 when there is no room (or queues, with
    --wait; a user who is not root may have one request in the queue, and exits with 1 for another),
    and with 2 for a request that can never be granted; 126 and 127 mean the same as in a shell.

        mpsd run --gpu-mem 7 -- python train.py
        mpsd run --gpu-mem 4 --gpu-core 30 --wait -- ./infer --port 8000
    """
    if command[:1] == ["--"]:
        command = command[1:]
    if not any(command[:1]):
        _give_up("there is no command; name a program after --", ExitCode.MISUSE)
    socket = settings(run_directory=run_dir).socket_to_ask
    asked = _readable(shlex.join(command))
    asks = ProgramRequest(_readable(gpu_mem), None, _readable(gpus), 0.0, asked)
    if gpu_core is not None:
        asks = replace(asks, gpu_core=_readable(gpu_core))
    try:
        answer = _ask(socket, asks)
        if isinstance(answer, Refusal) and wait and not answer.for_ever:
            reasons = "; ".join(answer.reasons)
            how_long = f"at most {timeout:g} s (Ctrl-C to give up)"
            complaints().print(f"mpsd run: waiting for room, {how_long}: {reasons}")
            answer = _ask(socket, replace(asks, wait_s=timeout))
    except (local_api.NotRunning, TimeoutError) as error:
        _give_up(str(error), ExitCode.NO)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if isinstance(answer, Refusal):
        reasons = "\n".join(answer.reasons)
        if wait and not answer.for_ever:
            reasons = f"gave up after {timeout:g} s: {reasons}"
        elif not answer.for_ever:
            reasons += "; use --wait to join the queue"
        _give_up(reasons, ExitCode.of_refusal(for_ever=answer.for_ever))
    for message in answer.messages:
        complaints().print(f"mpsd run: {message}")
    _become(command, answer)


def _readable(argument: str) -> str:
    """As Unicode, whatever bytes it holds."""
    return os.fsencode(argument).decode(errors="replace")


def _ask(socket: Path, asks: ProgramRequest) -> GrantAnswer | Refusal:
    """NotRunning, TimeoutError. Ends the program where mpsd stops, or where its user has a request
    that waits already: this one cannot wait."""
    gpus = 1
    if asks.gpus.isascii() and asks.gpus.isdecimal():
        gpus = min(int(asks.gpus[:3]), _MOST_GPUS)
    longest_s = asks.wait_s + DIVIDE_S + join_s(gpus) + _ANSWER_GRACE_S
    status, body = local_api.ask(socket, "POST", "/v1/grants", asks, longest_s)
    if status in {_STOPPING, _SECOND}:
        _give_up("; ".join(local_api.read(body, Refusal).reasons), ExitCode.NO)
    if status == _CREATED:
        return local_api.read(body, GrantAnswer)
    return local_api.read(body, Refusal)


def _become(command: list[str], answer: GrantAnswer) -> NoReturn:
    """From now on grant, signals and exit code are the command's own."""
    environment = os.environ | answer.environment
    if answer.path_first:
        path = environment.get("PATH", os.defpath)
        environment["PATH"] = f"{answer.path_first}{os.pathsep}{path}"
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these, and so would the program
        signal.signal(signum, signal.SIG_DFL)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        _give_up(f"{command[0]}: no such command", 127)
    except OSError as error:
        _give_up(f"{command[0]}: {error.strerror}", 126)


def _give_up(message: str, code: int) -> NoReturn:
    complaints().print(f"mpsd run: {message}")
    sys.exit(code)
