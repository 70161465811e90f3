"""`mpsd stop`: ends programs of `mpsd run`."""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mpsd.grants.rules.messages import ProgramStopped, ProgramsToStop, StopOutcome
from mpsd.model.node_report import GrantReport, NodeReport
from mpsd.model.node_view import Queue
from mpsd.platform import local_api
from mpsd.platform.command_line import OUTPUT, RUN_DIR, Between, option, takes
from mpsd.platform.console import ExitCode, Format, answers, complaints, one_line, print_json
from mpsd.platform.imports import INTERRUPTED
from mpsd.platform.settings import Settings, settings
from mpsd.status.grant_options import (
    give_up,
    give_up_refused,
    known_as,
    meant,
    named,
    programs,
    why_not_one,
)

_OK = 200
_LONGEST_GRACE_S = 3600.0
_PATIENCE_S = 60.0  # beyond the grace; the agent gives up earlier
_QUIET_S = 1.0
_SAID = {StopOutcome.TERMINATED: "ended by itself", StopOutcome.KILLED: "ended, some of it killed"}
_IN_USE = (
    "; its GPU was still in use when its time was up (end_drain_s), so its neighbours may have been"
    " struck: `mpsd status` shows faults"
)


@takes(
    option(
        "grants", nargs="+", metavar="GRANT", help="As `mpsd status` shows them.", complete=programs
    ),
    option(
        "--grace",
        type=Between(0, _LONGEST_GRACE_S),
        metavar="SECONDS",
        help="For how long those that handle SIGTERM may end by themselves; 0: they do not get it.",
    ),
    OUTPUT,
    RUN_DIR,
)
def stop(
    *,
    grants: list[str],
    grace: float = 10.0,
    output: Format = Format.TEXT,
    run_dir: str | None = None,
) -> None:
    """End programs of `mpsd run`, sparing others on their GPUs.

    A client of MPS that is killed while a kernel runs takes all others on its GPU along. So each
    process of the program that handles SIGTERM gets it, and has --grace seconds to end. What is
    left then, and what would die of SIGTERM at once, is stopped, and killed once its kernels have
    run; its exit code is 137. A kernel longer than end_drain_s of the policy is cut short, and
    takes others along: "queue" in the JSON is then in_use, else dry; unknown if nobody can tell.

    For root, mpsd's own user, and the user who runs the program. Exit codes: 0 all have ended, 1
    some have not or are not there, 2 usage error. Containers end by their engine (`docker stop`),
    pods by `kubectl delete pod`.

        mpsd status                       GRANT is the first column
        mpsd stop 989556061c34            end one program
        mpsd stop 9895 3f2a --grace 60    end two, each within a minute
    """
    chosen = settings(run_directory=run_dir)
    try:
        _code, body = local_api.ask(chosen.socket_to_ask, "GET", "/v1/node")
        there = named(local_api.read(body, NodeReport).grants or (), chosen)
        wanted, problems = _meant(there, grants)
        stopped = _ask(chosen, wanted, grace)
    except (local_api.NotRunning, TimeoutError) as error:
        give_up(f"mpsd stop: {error}", ExitCode.NO)
    if output is Format.JSON:
        print_json(stopped)
    else:
        _show(stopped, wanted)
    for one in stopped:
        problems += [f"{known_as(wanted[one.grant])}: {reason}" for reason in one.reasons]
    for problem in problems:
        complaints().print(one_line(f"mpsd stop: {problem}"))
    sys.exit(ExitCode.of(not problems))


def _meant(
    there: Sequence[GrantReport], words: Sequence[str]
) -> tuple[dict[str, GrantReport], list[str]]:
    """The grants that are meant, by id, and what is wrong with other words."""
    wanted: dict[str, GrantReport] = {}
    problems = []
    for word in words:
        found = meant(there, word)
        if len(found) == 1:
            wanted[found[0].id] = found[0]
        else:
            problems.append(why_not_one(there, found, word))
    return wanted, problems


def _ask(
    chosen: Settings, wanted: Mapping[str, GrantReport], grace_s: float
) -> Sequence[ProgramStopped]:
    """NotRunning, TimeoutError. Ends the program where nothing can be stopped here."""
    if not wanted:
        return ()
    asks = ProgramsToStop(tuple(wanted), grace_s)
    where = (chosen.socket_to_ask, "POST", "/v1/programs/stop")
    try:
        with _progress(len(wanted), grace_s):
            code, body = local_api.ask(*where, asks, grace_s + _PATIENCE_S)
    except KeyboardInterrupt:
        why = "what has begun goes on in mpsd; `mpsd status` shows what is left"
        give_up(f"mpsd stop: {why}", INTERRUPTED)
    if code != _OK:
        give_up_refused("mpsd stop", body)
    return local_api.read(body, list[ProgramStopped])


@contextmanager
def _progress(count: int, grace_s: float) -> Iterator[None]:
    """Says what is waited for, where that takes long."""

    def say() -> None:
        then = f"what is left after {grace_s:g} s is killed"
        complaints().print(f"mpsd stop: waiting for {_counted(count, 'program')} to end; {then}")

    timer = threading.Timer(_QUIET_S, say)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _counted(count: int, thing: str, ending: str = "s") -> str:
    if count == 1:
        return f"1 {thing}"
    return f"{count} {thing}{ending}"


def _show(stopped: Sequence[ProgramStopped], wanted: Mapping[str, GrantReport]) -> None:
    for one in stopped:
        if said := _SAID.get(one.outcome):
            name = known_as(wanted[one.grant])
            processes = _counted(one.processes, "process", "es")
            line = f"{name}: {said}, {processes}, {one.took_s:.1f} s"
            if one.queue is Queue.IN_USE:
                line += _IN_USE
            answers().print(one_line(line))
