"""Gathers a support bundle of this node, part by part.

One rule: a part is read and given away before the next; one that cannot be had is named with the reason.
"""

import gzip
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

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
from mpsd.operations.doctor.node import Host
from mpsd.operations.doctor.rules.facts import AgentSeen, Diagnosis, NodeFacts, diagnose, known
from mpsd.operations.doctor.rules.host_checks import CHECKS
from mpsd.platform import local_api, records
from mpsd.platform.domain_folder import DomainFolder
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, read_limits
from mpsd.platform.nvml import Nvml, NvmlFailed

# Reads what a bundle takes of a machine: ends of files, what programs print, what the kernel says of itself.
#
# One rule: a look has a deadline and a size, and what cannot be had is OSError with the reason.

_DEADLINE_S = 10.0


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


_RUNTIME_LOG = Path("/var/log/mpsd/runtime.log")
_JOURNAL = ("journalctl", "-u", "mpsd*", "-n", "5000", "--no-pager", "-o", "short-iso")


def parts(place: node.NodeSurvey, report: Callable[[Diagnosis], object]) -> Iterator[BundlePart]:
    """report: a diagnosis for programs."""
    yield json_part("versions.json", "versions of mpsd, kernel and system", {"mpsd": mpsd.__version__, **system()})
    facts = _bare(node.look(place))
    diagnosis = diagnose(facts, CHECKS)
    yield text_part("doctor.txt", "the worst that `mpsd doctor` found", f"{diagnosis.headline}\n")
    yield json_part("doctor.json", "`mpsd doctor -o json`", report(diagnosis))
    yield from _agent(place)
    yield _gpus(place.nvml)
    yield from _limits(Path(known(facts.limits).folder))
    directory = place.settings.socket_to_ask.parent
    for path in sorted(directory.glob("gpu*")):
        yield from _domain(DomainFolder(path))
    yield from _surroundings(place.host)
    yield _tried("log/journal.log", "mpsd's own log, by systemd", partial(printed, *_JOURNAL), log_part)


def _bare(facts: NodeFacts) -> NodeFacts:
    """Without the arguments of anybody's commands, which the doctor would repeat."""
    agent = facts.agent
    told = isinstance(agent, AgentSeen) and agent.told
    return replace(facts, agent=AgentSeen(without_arguments(told))) if told else facts


def _agent(place: node.NodeSurvey) -> Iterator[BundlePart]:
    socket = place.settings.socket_to_ask
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
    status = without_arguments(local_api.read(body, NodeStatus))
    return msgspec.json.format(msgspec.json.encode(status), indent=1).decode() + "\n"


def _gpus(nvml: Nvml | str) -> BundlePart:
    file, about = "gpus.json", "driver and GPUs, by NVML"
    if isinstance(nvml, str):
        return missing_part(file, about, nvml)
    told = node.within(node.NVML_S, lambda: _driver(nvml))
    if not isinstance(told, dict):
        return missing_part(file, about, told or f"NVML does not answer within {node.NVML_S:g} s")
    return json_part(file, about, told)


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
    told: dict[str, object] = {"index": ordinal, "uuid": uuid, "name": name, "capability": capability}
    for what, ask in asked.items():
        try:
            told[what] = ask()
        except NvmlFailed as error:
            told[what] = str(error)
    return told


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
        return msgspec.json.format(msgspec.json.encode(records.read(path, kind)), indent=1).decode() + "\n"
    except records.UnreadableRecord as error:
        raise OSError(error.reason) from None


def _surroundings(host: Host | None) -> Iterator[BundlePart]:
    if host is None:
        yield missing_part("engines", "container engines", "these GPUs are played, and have none around them")
        return
    for name, path in (*((str(engine), path) for engine, path in CONFIGURATION.items()), ("launcher", LAUNCHER)):
        about = f"the runtimes in {path}, which `mpsd install` writes into"
        yield _tried(f"engines/{name}", about, partial(_configuration, host, path))
    runtime = host.root / str(_RUNTIME_LOG).lstrip("/")
    about = "the end of the log of mpsd-runtime"
    yield _tried("log/runtime.log", about, partial(tail, runtime, MOST_BYTES), log_part)


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
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def _tried(
    file: str, about: str, read: Callable[[], str], make: Callable[[str, str, str], BundlePart] = text_part
) -> BundlePart:
    try:
        return make(file, about, read())
    except (OSError, InvalidInput) as error:
        return missing_part(file, about, str(error))


# Writes a tar.gz that is there as a whole or not at all, for its owner's eyes only.
#
# One rule: until it is whole it has another name beside its own, and whatever ends this program takes that away, but
# SIGKILL.

_MODE = 0o600


class CannotWrite(OSError):
    """Why this file cannot be written, whatever else goes wrong meanwhile."""


class Archive:
    """Takes files while it is open."""

    def __init__(self, tar: tarfile.TarFile, folder: str) -> None:
        self._tar = tar
        self._folder = folder

    def add(self, file: str, data: bytes) -> None:
        entry = tarfile.TarInfo(f"{self._folder}/{file}")
        entry.size, entry.mode, entry.mtime = len(data), _MODE, int(time.time())
        self._tar.addfile(entry, io.BytesIO(data))


@contextmanager
def writing(path: Path, folder: str) -> Iterator[Archive]:
    """path gets it when the block ends well. folder: the one that all files in it are in. CannotWrite."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with _told():
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    former = signal.signal(signal.SIGTERM, _end)
    try:
        with _Raw(descriptor, "wb") as raw:
            with gzip.GzipFile("", "wb", fileobj=raw) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
                yield Archive(tar, folder)
            with _told():
                os.fsync(raw.fileno())
        with _told():
            beside.replace(path)
    finally:
        signal.signal(signal.SIGTERM, former)
        with suppress(FileNotFoundError):
            beside.unlink()


class _Raw(io.FileIO):
    def write(self, data: Any, /) -> int:
        """All of it: gzip takes it for granted."""
        with _told():
            left = memoryview(data)
            while left:
                left = left[super().write(left) :]
            return len(data)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(error.errno, error.strerror) from None


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
