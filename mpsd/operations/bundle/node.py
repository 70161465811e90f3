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

import msgspec

import mpsd
from mpsd.containers import engine_files
from mpsd.containers.engines.change import CONFIGURATION, LAUNCHER
from mpsd.containers.engines.launcher import launched
from mpsd.model.metrics import CommandTimes
from mpsd.model.node_status import NodeStatus, without_arguments
from mpsd.model.node_view import DomainRecord
from mpsd.model.problem import InvalidInput
from mpsd.mps.drain import DrainRequest
from mpsd.operations.bundle.archive import Output, bundle_to
from mpsd.operations.bundle.rules.contents import (
    MOST_BYTES,
    BundlePart,
    daemon_log_kept,
    engine_kept,
    faults_kept,
    json_part,
    log_part,
    missing_part,
    text_part,
)
from mpsd.operations.doctor import node
from mpsd.operations.doctor.host import Host
from mpsd.operations.doctor.node import KubeletDirectory, Root
from mpsd.operations.doctor.report import record
from mpsd.operations.doctor.rules.checks import diagnose, known
from mpsd.operations.doctor.rules.node_checks import NODE_CHECKS
from mpsd.operations.doctor.rules.node_facts import AgentSeen, NodeFacts
from mpsd.platform import local_api, records
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, read_limits
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.options import LimitsDirectory, RunDirectory, Simulate
from mpsd.platform.run_directory import DomainFolder
from mpsd.platform.settings import settings

_DEADLINE_S = 10.0
_RUNTIME_LOG = "var/log/mpsd/runtime.log"  # below the root
_JOURNAL = ("journalctl", "-u", "mpsd*", "-n", "5000", "--no-pager", "-o", "short-iso")


def tail(path: Path, most_bytes: int) -> str:
    """The end of a file, whatever bytes it has. A link is not followed: mpsd makes none. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
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


def system() -> dict[str, object]:
    """The kernel, the distribution, and which version of cgroups is in use."""
    try:
        distribution = platform.freedesktop_os_release()
    except OSError:
        distribution = {}
    return {
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
    """Everything that a bundle of a machine holds."""
    yield json_part("versions.json", "versions of mpsd, kernel and system", {"mpsd": mpsd.__version__, **system()})
    facts = _bare(node.look(survey))
    diagnosis = diagnose(facts, NODE_CHECKS)
    yield text_part("doctor.txt", "the worst that `mpsd doctor` found", f"{diagnosis.headline}\n")
    yield json_part("doctor.json", "`mpsd doctor -o json`", record(diagnosis))
    yield from _agent(survey)
    yield _gpus(survey.nvml)
    yield from _limits(Path(known(facts.limits).folder))
    directory = survey.settings.socket_to_ask.parent
    for path in sorted(directory.glob("gpu*")):
        yield from _domain(DomainFolder(path))
    yield from _around(survey.host)
    yield _tried("log/journal.log", "mpsd's own log, by systemd", partial(printed, *_JOURNAL), log_part)


def _bare(facts: NodeFacts) -> NodeFacts:
    """Without the arguments of anybody's commands, which the doctor would repeat."""
    status = isinstance(facts.agent, AgentSeen) and facts.agent.status
    return replace(facts, agent=AgentSeen(without_arguments(status))) if status else facts


def _agent(survey: node.NodeSurvey) -> Iterator[BundlePart]:
    socket = survey.settings.socket_to_ask
    for file, about, path, read in (
        ("node.json", "what the agent sees, GET /v1/node", "/v1/node", _node_json),
        ("metrics.txt", "the agent's metrics, GET /metrics", "/metrics", lambda body: body.decode(errors="replace")),
    ):
        try:
            code, body = local_api.ask(socket, "GET", path)
            yield text_part(file, about, read(body)) if code == 200 else missing_part(file, about, f"HTTP {code}")
        except (local_api.NotRunning, TimeoutError, OSError) as error:
            yield missing_part(file, about, str(error))


def _node_json(body: bytes) -> str:
    return _json(without_arguments(local_api.read(body, NodeStatus)))


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def _gpus(nvml: Nvml | str) -> BundlePart:
    file, about = "gpus.json", "driver and GPUs, by NVML"
    if isinstance(nvml, str):
        return missing_part(file, about, nvml)
    found = node.within(node.NVML_S, lambda: _driver(nvml))
    if not isinstance(found, dict):
        return missing_part(file, about, found or f"NVML does not answer within {node.NVML_S:g} s")
    return json_part(file, about, found)


def _driver(nvml: Nvml) -> dict[str, object] | str:
    """Why not, where it does not say."""
    try:
        nvml.open()
        try:
            gpus = [_gpu(nvml, ordinal) for ordinal in range(nvml.count())]
            return {"driver": nvml.driver(), "cuda": nvml.cuda(), "gpus": gpus}
        finally:
            nvml.close()
    except NvmlFailed as error:
        return str(error)


def _gpu(nvml: Nvml, ordinal: int) -> dict[str, object]:
    try:
        uuid, name, capability = nvml.found(ordinal)
    except NvmlFailed as error:
        return {"index": ordinal, "why": str(error)}
    asked: dict[str, Callable[[], object]] = {
        "mig": lambda: nvml.mig_enabled(uuid),
        "compute_mode": lambda: nvml.compute_mode(uuid),
        "busy_percent": lambda: nvml.busy_percent(uuid),
        "processes": lambda: [{"pid": pid, "used": used} for pid, used in nvml.uses(uuid)],
        "mps_clients": lambda: sorted(nvml.mps_pids(uuid)),
    }
    found: dict[str, object] = {"index": ordinal, "uuid": uuid, "name": name, "capability": capability}
    for what, ask in asked.items():
        try:
            found[what] = ask()
        except NvmlFailed as error:
            found[what] = str(error)
    return found


def _limits(folder: Path) -> Iterator[BundlePart]:
    """The values in each file, without its comments; none of a file that is not read as limits."""
    found = read_limits(folder)
    for name, read in ((POLICY_FILE, found.policy), (GPU_FACTS_FILE, found.facts)):
        file, about = f"limits/{name}", f"{folder / name}, as it was read"
        yield (
            missing_part(file, about, faults_kept(read))
            if isinstance(read, InvalidInput)
            else json_part(file, about, msgspec.to_builtins(read))
        )


def _domain(folder: DomainFolder) -> Iterator[BundlePart]:
    name = folder.path.name
    for path, about, kind in (
        (folder.record, "record of mpsd control", DomainRecord),
        (folder.limits, "limits that were read back", int),
        (folder.commands, "how long the daemon took for commands", CommandTimes),
        (folder.drain, "drain that was asked for", DrainRequest),
    ):
        if path.exists():
            yield _tried(f"domains/{name}/{path.name}", f"{name}: {about}", partial(_record, path, kind))
    gate = {"serves": folder.gate.exists(), "client": sorted(one.name for one in folder.client.glob("*"))}
    yield json_part(f"domains/{name}/gate.json", f"{name}: whether containers may start there", gate)
    for log in sorted(folder.log.parent.glob("*.log*")):
        about = f"{name}: the end of the daemon's log"
        yield _tried(f"domains/{name}/{log.name}", about, partial(_daemon_log, log))


def _daemon_log(path: Path) -> str:
    return daemon_log_kept(tail(path, MOST_BYTES))


def _record(path: Path, kind: type[object]) -> str:
    """The fields that such a record has, whatever others are in the file."""
    try:
        return _json(records.read(path, kind))
    except records.UnreadableRecord as error:
        raise OSError(error.reason) from None


def _around(host: Host | None) -> Iterator[BundlePart]:
    if host is None:
        yield missing_part("engines", "container engines", "GPUs are simulated: no container engines belong to them")
        return
    for name, path in (*((str(engine), path) for engine, path in CONFIGURATION.items()), ("launcher", LAUNCHER)):
        about = f"the runtimes in {path}, which `mpsd install` writes into"
        yield _tried(f"engines/{name}", about, partial(_configuration, host, path))
    runtime = partial(tail, host.root / _RUNTIME_LOG, MOST_BYTES)
    yield _tried("log/runtime.log", "the end of the log of mpsd-runtime", runtime, log_part)


def _configuration(host: Host, path: str) -> str:
    """What it says of runtimes; of the launcher, which `mpsd install` wrote, what it starts."""
    found = engine_files.find(host.root / path.lstrip("/"), host.root)
    if found.text is None:
        raise FileNotFoundError(f"there is no {path}")
    if path == LAUNCHER:
        value: object = launched(found.text)
    else:
        try:
            value = engine_kept(json.loads(found.text) if path.endswith(".json") else tomllib.loads(found.text))
        except (ValueError, RecursionError):
            raise OSError(f"{path} cannot be decoded") from None
    return _json(value)


def _tried(
    file: str, about: str, read: Callable[[], str], make: Callable[[str, str, str], BundlePart] = text_part
) -> BundlePart:
    try:
        return make(file, about, read())
    except (OSError, InvalidInput) as error:
        return missing_part(file, about, str(error))


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

    In it: what `mpsd doctor` says, GET /v1/node, metrics, both limits files, records, limits and gates of the domains,
    the ends of the daemons' logs and of mpsd's own, driver and GPUs by NVML, versions of kernel, system and cgroups,
    the runtimes that container engines are configured with. INDEX.txt says what each part is, what was cut
    (2 MiB a part, its end; 64 MiB in all), and what was not available and why.

    Not in it: environments and arguments of programs, Secrets, tokens, keys, kubeconfigs. Of logs and configurations
    it takes what is known to be harmless; [left out] is in the place of the rest. Look through it before you send it.

    It only looks. Exits with 0 when the file is written, 2 when it cannot be; 130 after Ctrl-C, with nothing left.

        mpsd bundle
        mpsd bundle -o /tmp/for-support.tar.gz
        tar xzOf mpsd-bundle-*.tar.gz --wildcards '*/INDEX.txt'
    """
    chosen = settings(run_directory=run_dir, limits_directory=limits, simulate=simulate)
    survey = node.survey_of(chosen, root, kubelet_dir)
    with bundle_to(output, "mpsd bundle", f"node {gethostname()}") as put:
        for part in parts(survey):
            put(part)
