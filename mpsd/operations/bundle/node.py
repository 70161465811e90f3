"""`mpsd bundle`: a support archive of this machine.

Each part is read and written before the next; one that is not available is named with the reason.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import gethostname

import mpsd
from mpsd.model.metrics import CommandTimes, LogLoss
from mpsd.model.node_report import NodeReport
from mpsd.model.node_view import DomainRecord
from mpsd.model.problem import InvalidInput
from mpsd.model.redaction import without_arguments
from mpsd.mps.drain import DrainRequest
from mpsd.mps.memory_caps import IN_FORCE
from mpsd.mps.records import DOMAINS_FILE, JoinedGroups
from mpsd.mps.rules.memory_caps import CapsInForce
from mpsd.operations.bundle.archive import BUNDLE_OUTPUT, bundle_to
from mpsd.operations.bundle.rules import contents
from mpsd.operations.bundle.rules.contents import MOST_BYTES, BundlePart, json_text, log_kept
from mpsd.operations.doctor import node
from mpsd.operations.doctor.node import KUBELET_DIR, ROOT
from mpsd.operations.doctor.report import record
from mpsd.operations.doctor.rules.checks import Unknown, diagnose, known
from mpsd.operations.doctor.rules.node_checks import NODE_CHECKS
from mpsd.platform import local_api, records
from mpsd.platform.command_line import LIMITS, RUN_DIR, SIMULATED, takes
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, read_limits
from mpsd.platform.settings import LOG_LOSS, settings

# the file, what it is, and its text or why there is none
Source = tuple[str, str, Callable[[], str]]

_NOT_AVAILABLE = OSError, InvalidInput, local_api.NotRunning, records.UnreadableRecord, Unknown
_DEADLINE_S = 10.0
_JOURNAL = ("journalctl", "-u", "mpsd*", "-n", "5000", "--no-pager", "-o", "short-iso")
# mpsd's records in the run directory: what is taken are the fields that such a record has.
_RECORDS: tuple[tuple[str, str, type[object]], ...] = (
    (DOMAINS_FILE, "GPUs that are joined on demand", JoinedGroups),
    (IN_FORCE, "memory limits of cgroups that are in force", CapsInForce),
    (LOG_LOSS, "log lines of mpsd control that nobody read", LogLoss),
    ("gpu*/record.json", "record of mpsd control", DomainRecord),
    ("gpu*/limits.json", "limits that were read back", int),
    ("gpu*/commands.json", "how long the daemon took for commands", CommandTimes),
    ("gpu*/drain.json", "drain that was requested", DrainRequest),
)


def tail(path: Path, most_bytes: int) -> str:
    """The end of a file, whatever bytes it has. A link is not followed: mpsd makes none.
    OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes).decode(errors="replace")


def _journal() -> str:
    """OSError where there is none, or it takes too long."""
    program = _JOURNAL[0]
    if not shutil.which(program):
        raise FileNotFoundError(f"{program} is not on PATH")
    try:
        done = subprocess.run(
            _JOURNAL, capture_output=True, stdin=subprocess.DEVNULL, timeout=_DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{program} does not end within {_DEADLINE_S:g} s") from None
    if done.returncode:
        raise OSError(f"{program} failed: exit code {done.returncode}")
    return log_kept(done.stdout.decode(errors="replace"))


def _versions() -> dict[str, object]:
    distribution = {}
    with suppress(OSError):
        distribution = platform.freedesktop_os_release()
    return {
        "mpsd": mpsd.__version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "distribution": distribution.get("PRETTY_NAME", "not known"),
        "cgroups": 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1,
        "dmem": Path("/sys/fs/cgroup/dmem.capacity").exists(),
        "processors": os.cpu_count(),
    }


def parts(survey: node.NodeSurvey) -> Iterator[BundlePart]:
    for file, about, read in _sources(survey):
        try:
            yield BundlePart(file, about, read())
        except _NOT_AVAILABLE as error:
            yield contents.missing_part(file, about, str(error))


def _sources(survey: node.NodeSurvey) -> Iterator[Source]:
    yield "versions.json", "versions of mpsd, kernel and system", lambda: json_text(_versions())
    facts = node.look(survey)
    if isinstance(facts.agent, NodeReport):  # whose commands the doctor would repeat
        facts = replace(facts, agent=without_arguments(facts.agent))
    doctored = record(diagnose(facts, NODE_CHECKS))
    yield "doctor.json", "`mpsd doctor -o json`", lambda: json_text(doctored)
    yield "node.json", "what the agent sees, GET /v1/node", lambda: json_text(known(facts.agent))
    yield "metrics.txt", "the agent's metrics", lambda: _metrics(survey.settings.socket_to_ask)
    gpus = {"driver": facts.driver, "gpus": facts.gpus, "nvml": facts.nvml}
    yield "gpus.json", "driver and GPUs, by NVML", lambda: json_text(gpus)
    limits = read_limits(Path(facts.limits_folder))
    yield f"limits/{POLICY_FILE}", "the policy, as it was read", lambda: _limits(limits.policy)
    yield f"limits/{GPU_FACTS_FILE}", "facts of GPUs, as read", lambda: _limits(limits.facts)
    directory = survey.settings.socket_to_ask.parent
    for pattern, about, kind in _RECORDS:
        for path in sorted(directory.glob(pattern)):
            yield f"run/{path.relative_to(directory)}", about, partial(_record, path, kind)
    for path in sorted(directory.glob("gpu*/log/*.log*")):
        about = "the end of the daemon's log"
        yield f"run/{path.relative_to(directory)}", about, partial(_daemon_log, path)
    if survey.host:
        log = survey.host.root / "var/log/mpsd/runtime.log"
        yield "log/runtime.log", "of mpsd-runtime", lambda: log_kept(tail(log, MOST_BYTES))
    yield "log/journal.log", "mpsd's own log, by systemd", _journal


def _metrics(socket: Path) -> str:
    code, body = local_api.ask(socket, "GET", "/metrics")
    if code != 200:
        raise OSError(f"HTTP {code}")
    return body.decode(errors="replace")


def _limits(read: object) -> str:
    """The values in a file, without its comments; none of a file that is not read as limits."""
    if isinstance(read, InvalidInput):
        raise OSError(contents.faults_kept(read))
    return json_text(read)


def _record(path: Path, kind: type[object]) -> str:
    return json_text(records.read(path, kind))


def _daemon_log(path: Path) -> str:
    return contents.daemon_log_kept(tail(path, MOST_BYTES))


@takes(BUNDLE_OUTPUT, SIMULATED, LIMITS, RUN_DIR, ROOT, KUBELET_DIR)
def bundle(
    *,
    output: str | None = None,
    simulate: str | None = None,
    limits: str | None = None,
    run_dir: str | None = None,
    root: str | None = None,
    kubelet_dir: str | None = None,
) -> None:
    """Create a support bundle of this machine: one file that only you may read.

    In it: `mpsd doctor -o json`, GET /v1/node, metrics, both limits files, mpsd's records, the ends
    of the daemons' logs and of mpsd's own, driver and GPUs by NVML, versions of kernel, system and
    cgroups. INDEX.txt describes each part, what was cut (2 MiB a part, its end; 64 MiB in all), and
    what is not available and why.

    Not in it: environments and arguments of programs, Secrets, tokens, keys, kubeconfigs,
    configurations of others: only what mpsd lists by name. Review it before you send it.

    It changes nothing. Exits with 0 when the file is written, 2 when it cannot be; 130 after
    Ctrl-C, with nothing left.

        mpsd bundle
        mpsd bundle -o /tmp/for-support.tar.gz
        tar xzOf mpsd-bundle-*.tar.gz --wildcards '*/INDEX.txt'
    """
    chosen = settings(run_directory=run_dir, limits_directory=limits, simulate=simulate)
    survey = node.survey_of(chosen, root, kubelet_dir)
    with bundle_to(output, "mpsd bundle", f"node {gethostname()}") as put:
        for part in parts(survey):
            put(part)
