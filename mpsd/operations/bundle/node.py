"""`mpsd bundle`: a support archive of this machine, with nothing secret in it.

Each part is read and written before the next. A look has a deadline and a size; a part that is not available is named
with the reason.
"""

import json
import os
import platform
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import gethostname

import mpsd
from mpsd.containers import engine_files
from mpsd.containers.engines.configuration import CONFIGURATIONS, LAUNCHER
from mpsd.containers.engines.launcher import launched
from mpsd.model.metrics import CommandTimes
from mpsd.model.node_status import NodeStatus, without_arguments
from mpsd.model.node_view import DomainRecord
from mpsd.model.problem import InvalidInput
from mpsd.mps.drain import DrainRequest
from mpsd.mps.memory_caps import IN_FORCE
from mpsd.mps.records import DOMAINS_FILE, JoinedGroups
from mpsd.mps.rules.memory_caps import CapsInForce
from mpsd.operations.bundle.archive import Output, bundle_to
from mpsd.operations.bundle.rules import contents
from mpsd.operations.bundle.rules.contents import MOST_BYTES, BundlePart, json_text, log_kept, missing_part
from mpsd.operations.doctor import node
from mpsd.operations.doctor.host import Host
from mpsd.operations.doctor.node import KubeletDirectory, Root
from mpsd.operations.doctor.report import record
from mpsd.operations.doctor.rules.checks import Unknown, diagnose, known
from mpsd.operations.doctor.rules.node_checks import NODE_CHECKS
from mpsd.platform import local_api, records
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, read_limits
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.options import LimitsDirectory, RunDirectory, Simulate
from mpsd.platform.run_directory import DomainFolder
from mpsd.platform.settings import settings

Source = tuple[str, str, Callable[[], str]]  # the file, what it is, and its text or why there is none

_DEADLINE_S = 10.0


def tail(path: Path, most_bytes: int) -> str:
    """The end of a file, whatever bytes it has. A link is not followed: mpsd makes none. OSError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes).decode(errors="replace")


def printed(*command: str) -> str:
    """What a program prints. OSError where it is not there, fails, or takes too long."""
    if not shutil.which(command[0]):
        raise FileNotFoundError(f"{command[0]} is not on PATH")
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, text=True, errors="replace", timeout=_DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{command[0]} does not end within {_DEADLINE_S:g} s") from None
    if done.returncode:
        raise OSError(f"{command[0]} failed: {done.stderr.strip()[:300] or f'exit code {done.returncode}'}")
    return done.stdout


def _versions() -> dict[str, object]:
    try:
        distribution = platform.freedesktop_os_release()
    except OSError:
        distribution = {}
    return {
        "mpsd": mpsd.__version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "distribution": distribution.get("PRETTY_NAME", "not known"),
        "cgroups": 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1,
        "dmem": Path("/sys/fs/cgroup/dmem.capacity").exists(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
    }


def parts(survey: node.NodeSurvey) -> Iterator[BundlePart]:
    for file, about, read in _sources(survey):
        try:
            yield BundlePart(file, about, read())
        except (OSError, InvalidInput, local_api.NotRunning, records.UnreadableRecord, Unknown) as error:
            yield missing_part(file, about, str(error))
    if survey.host is None:
        yield missing_part("engines", "container engines", "GPUs are simulated: no container engines belong to them")


def _sources(survey: node.NodeSurvey) -> Iterator[Source]:
    yield "versions.json", "versions of mpsd, kernel and system", lambda: json_text(_versions())
    facts = node.look(survey)
    if isinstance(facts.agent, NodeStatus):  # whose commands the doctor would repeat
        facts = replace(facts, agent=without_arguments(facts.agent))
    diagnosis = diagnose(facts, NODE_CHECKS)
    yield "doctor.txt", "the worst that `mpsd doctor` found", lambda: f"{diagnosis.headline}\n"
    yield "doctor.json", "`mpsd doctor -o json`", lambda: json_text(record(diagnosis))

    yield "node.json", "what the agent sees, GET /v1/node", lambda: json_text(known(facts.agent))
    yield "metrics.txt", "the agent's metrics, GET /metrics", lambda: _metrics(survey.settings.socket_to_ask)
    yield "gpus.json", "driver and GPUs, by NVML", lambda: _driver(survey.nvml)
    folder = Path(facts.limits_folder)
    found = read_limits(folder)
    for name, read in ((POLICY_FILE, found.policy), (GPU_FACTS_FILE, found.facts)):
        yield f"limits/{name}", f"{folder / name}, as it was read", partial(_limits, read)
    run_directory = survey.settings.socket_to_ask.parent
    if (joined := run_directory / DOMAINS_FILE).exists():
        yield DOMAINS_FILE, "GPUs that are joined on demand", partial(_record, joined, JoinedGroups)
    if (caps := run_directory / IN_FORCE).exists():
        yield IN_FORCE, "memory limits of cgroups that are in force", partial(_record, caps, CapsInForce)
    for path in sorted(run_directory.glob("gpu*")):
        yield from _domain(DomainFolder(path))
    if survey.host:
        yield from _engines(survey.host)
    journal = ("journalctl", "-u", "mpsd*", "-n", "5000", "--no-pager", "-o", "short-iso")
    yield "log/journal.log", "mpsd's own log, by systemd", lambda: log_kept(printed(*journal))


def _metrics(socket: Path) -> str:
    code, body = local_api.ask(socket, "GET", "/metrics")
    if code != 200:
        raise OSError(f"HTTP {code}")
    return body.decode(errors="replace")


def _driver(nvml: Nvml | str) -> str:
    def seen(nvml: Nvml) -> dict[str, object]:
        gpus = [_gpu(nvml, ordinal) for ordinal in range(nvml.count())]
        return {"driver": nvml.driver(), "cuda": nvml.cuda(), "gpus": gpus}

    found = node.ask_driver(nvml, seen)
    if isinstance(found, str):
        raise OSError(found)
    return json_text(found)


def _gpu(nvml: Nvml, ordinal: int) -> dict[str, object]:
    def answered(question: Callable[..., object]) -> object:
        try:
            return question(uuid)
        except NvmlFailed as error:
            return str(error)

    try:
        uuid, name, capability = nvml.found(ordinal)
    except NvmlFailed as error:
        return {"index": ordinal, "why": str(error)}
    return {
        "index": ordinal,
        "uuid": uuid,
        "name": name,
        "capability": capability,
        "mig": answered(nvml.mig_enabled),
        "instances": answered(nvml.instances),
        "compute_mode": answered(nvml.compute_mode),
        "busy_percent": answered(nvml.busy_percent),
        "processes": answered(lambda uuid: [{"pid": pid, "used": used} for pid, used in nvml.uses(uuid)]),
        "mps_clients": answered(lambda uuid: sorted(nvml.mps_pids(uuid))),
    }


def _limits(read: object) -> str:
    """The values in a file, without its comments; none of a file that is not read as limits."""
    if isinstance(read, InvalidInput):
        raise OSError(contents.faults_kept(read))
    return json_text(read)


def _domain(folder: DomainFolder) -> Iterator[Source]:
    name = folder.path.name
    for path, about, kind in (
        (folder.record, "record of mpsd control", DomainRecord),
        (folder.limits, "limits that were read back", int),
        (folder.commands, "how long the daemon took for commands", CommandTimes),
        (folder.drain, "drain that was requested", DrainRequest),
    ):
        if path.exists():  # the fields that such a record has, whatever others are in the file
            yield f"domains/{name}/{path.name}", f"{name}: {about}", partial(_record, path, kind)
    gate = {"serves": folder.gate.exists(), "client": sorted(one.name for one in folder.client.glob("*"))}
    yield f"domains/{name}/gate.json", f"{name}: whether containers may start there", partial(json_text, gate)
    for log in sorted(folder.log.parent.glob("*.log*")):
        yield f"domains/{name}/{log.name}", f"{name}: the end of the daemon's log", partial(_daemon_log, log)


def _record(path: Path, kind: type[object]) -> str:
    return json_text(records.read(path, kind))


def _daemon_log(path: Path) -> str:
    return contents.daemon_log_kept(tail(path, MOST_BYTES))


def _engines(host: Host) -> Iterator[Source]:
    for name, path in (*((str(engine), one.file) for engine, one in CONFIGURATIONS.items()), ("launcher", LAUNCHER)):
        about = f"the runtimes in {path}, which `mpsd install` writes into"
        yield f"engines/{name}", about, partial(_configuration, host, path)
    log = host.root / "var/log/mpsd/runtime.log"
    yield "log/runtime.log", "the end of the log of mpsd-runtime", lambda: log_kept(tail(log, MOST_BYTES))


def _configuration(host: Host, path: str) -> str:
    """What it configures of runtimes; of the launcher, which `mpsd install` wrote, what it starts."""
    found = engine_files.find(host.root / path.lstrip("/"), host.root)
    if found.text is None:
        raise FileNotFoundError(f"there is no {path}")
    if path == LAUNCHER:
        return json_text(launched(found.text))
    decode = json.loads if path.endswith(".json") else tomllib.loads
    try:
        return json_text(contents.engine_kept(decode(found.text)))
    except (ValueError, RecursionError):
        raise OSError(f"{path} cannot be decoded") from None


# -- the verb ---------------------------------------------------------------------------------------------------------


def bundle(
    output: Output = None,
    simulate: Simulate = None,
    limits: LimitsDirectory = None,
    run_dir: RunDirectory = None,
    root: Root = None,
    kubelet_dir: KubeletDirectory = None,
) -> None:
    """Create a support bundle of this machine: one file that only you may read.

    In it: the output of `mpsd doctor`, GET /v1/node, metrics, both limits files, records, limits and gates of the
    domains, the ends of the daemons' logs and of mpsd's own, driver and GPUs by NVML, versions of kernel, system and
    cgroups, the runtimes that container engines are configured with. INDEX.txt describes each part, what was cut
    (2 MiB a part, its end; 64 MiB in all), and what is not available and why.

    Not in it: environments and arguments of programs, Secrets, tokens, keys, kubeconfigs. Of logs and configurations
    it contains what is known to be harmless; [left out] replaces the rest. Review it before you send it.

    It changes nothing. Exits with 0 when the file is written, 2 when it cannot be; 130 after Ctrl-C, with nothing left.

        mpsd bundle
        mpsd bundle -o /tmp/for-support.tar.gz
        tar xzOf mpsd-bundle-*.tar.gz --wildcards '*/INDEX.txt'
    """
    chosen = settings(run_directory=run_dir, limits_directory=limits, simulate=simulate)
    survey = node.survey_of(chosen, root, kubelet_dir)
    with bundle_to(output, "mpsd bundle", f"node {gethostname()}") as put:
        for part in parts(survey):
            put(part)
