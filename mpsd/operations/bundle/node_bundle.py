"""Gathers a support bundle of this node, part by part.

One rule: a part is read and given away before the next; one that cannot be had is named with the reason.
"""

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

import mpsd
from mpsd.containers import engine_files
from mpsd.containers.engines.change import CONFIGURATION, LAUNCHER
from mpsd.containers.engines.launcher import launched
from mpsd.model.bare_commands import without_arguments
from mpsd.model.node_status import NodeStatus
from mpsd.model.node_view import DomainRecord
from mpsd.model.problem import InvalidInput
from mpsd.model.times_taken import CommandTimes
from mpsd.mps.drain_requests import DrainRequest
from mpsd.operations.bundle import bundle_files
from mpsd.operations.bundle.rules.bundle import MOST_BYTES, Part, json_part, log_part, missing_part, text_part
from mpsd.operations.bundle.rules.bundle_contents import daemon_log_kept, engine_kept, faults_kept
from mpsd.operations.doctor import doctor_facts
from mpsd.operations.doctor.doctor_host import Host
from mpsd.operations.doctor.rules.doctor import Diagnosis, diagnose
from mpsd.operations.doctor.rules.doctor_checks import CHECKS
from mpsd.operations.doctor.rules.doctor_facts import AgentSeen, NodeFacts, known
from mpsd.platform import local_api, records
from mpsd.platform.domain_folder import DomainFolder
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, read_limits
from mpsd.platform.nvml import Nvml, NvmlFailed

_RUNTIME_LOG = Path("/var/log/mpsd/runtime.log")
_JOURNAL = ("journalctl", "-u", "mpsd*", "-n", "5000", "--no-pager", "-o", "short-iso")


def parts(place: doctor_facts.Place, report: Callable[[Diagnosis], object]) -> Iterator[Part]:
    """report: a diagnosis for programs."""
    yield json_part(
        "versions.json", "versions of mpsd, kernel and system", {"mpsd": mpsd.__version__, **bundle_files.system()}
    )
    facts = _bare(doctor_facts.look(place))
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
    yield _tried("log/journal.log", "mpsd's own log, by systemd", partial(bundle_files.printed, *_JOURNAL), log_part)


def _bare(facts: NodeFacts) -> NodeFacts:
    """Without the arguments of anybody's commands, which the doctor would repeat."""
    agent = facts.agent
    told = isinstance(agent, AgentSeen) and agent.told
    return replace(facts, agent=AgentSeen(without_arguments(told))) if told else facts


def _agent(place: doctor_facts.Place) -> Iterator[Part]:
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


def _gpus(nvml: Nvml | str) -> Part:
    file, about = "gpus.json", "driver and GPUs, by NVML"
    if isinstance(nvml, str):
        return missing_part(file, about, nvml)
    told = doctor_facts.within(doctor_facts.NVML_S, lambda: _driver(nvml))
    if not isinstance(told, dict):
        return missing_part(file, about, told or f"NVML does not answer within {doctor_facts.NVML_S:g} s")
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


def _limits(folder: Path) -> Iterator[Part]:
    """The values in each file, without its comments; none of a file that is not read as limits."""
    found = read_limits(folder)
    for name, read in ((POLICY_FILE, found.policy), (GPU_FACTS_FILE, found.facts)):
        file, about = f"limits/{name}", f"{folder / name}, as it was read"
        yield (
            missing_part(file, about, faults_kept(read))
            if isinstance(read, InvalidInput)
            else json_part(file, about, msgspec.to_builtins(read))
        )


def _domain(folder: DomainFolder) -> Iterator[Part]:
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
    return daemon_log_kept(bundle_files.tail(path, MOST_BYTES))


def _record(path: Path, kind: type[object]) -> str:
    """The fields that such a record has, whatever others are in the file."""
    try:
        return msgspec.json.format(msgspec.json.encode(records.read(path, kind)), indent=1).decode() + "\n"
    except records.UnreadableRecord as error:
        raise OSError(error.reason) from None


def _surroundings(host: Host | None) -> Iterator[Part]:
    if host is None:
        yield missing_part("engines", "container engines", "these GPUs are played, and have none around them")
        return
    for name, path in (*((str(engine), path) for engine, path in CONFIGURATION.items()), ("launcher", LAUNCHER)):
        about = f"the runtimes in {path}, which `mpsd install` writes into"
        yield _tried(f"engines/{name}", about, partial(_configuration, host, path))
    runtime = host.root / str(_RUNTIME_LOG).lstrip("/")
    about = "the end of the log of mpsd-runtime"
    yield _tried("log/runtime.log", about, partial(bundle_files.tail, runtime, MOST_BYTES), log_part)


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


def _tried(file: str, about: str, read: Callable[[], str], make: Callable[[str, str, str], Part] = text_part) -> Part:
    try:
        return make(file, about, read())
    except (OSError, InvalidInput) as error:
        return missing_part(file, about, str(error))
