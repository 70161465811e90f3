"""The checks of `mpsd doctor` of the agent, and of what it sees and others do not.

One rule: what only the agent can know is unknown where it does not answer.
"""

from collections.abc import Iterator

from mpsd.model.domain import State, after_is, remedy
from mpsd.model.node_status import NodeStatus
from mpsd.model.node_view import RECORD_VERSION
from mpsd.operations.doctor.rules.component_rights import Component, Skew, skew_of
from mpsd.operations.doctor.rules.facts import (
    Check,
    DomainSeen,
    Elsewhere,
    NodeFacts,
    NotKnown,
    Severity,
    Unknown,
    Wrong,
    each,
    known,
)

_SHOWN = 3  # processes that are named


def _agent_silent(facts: NodeFacts) -> Iterator[Wrong]:
    agent = known(facts.agent)
    if agent.told:
        return
    if known(facts.holder) is None:
        raise NotKnown(Elsewhere("mpsd does not run here"))
    what, _semicolon, remedy = agent.why_not.rpartition("; ")
    yield Wrong(what or agent.why_not, remedy if what else "see its log")


def _told(facts: NodeFacts) -> NodeStatus:
    """What the agent says. NotKnown where it says nothing."""
    agent = known(facts.agent)
    if agent.told is None:
        raise NotKnown(Unknown(agent.why_not))
    return agent.told


def _outside_ledger(facts: NodeFacts) -> Iterator[Wrong]:
    told = _told(facts)
    if told.clients is None:
        raise NotKnown(Unknown("NVML does not tell the agent who is on the GPUs"))
    outside = [client for client in told.clients if client.grant is None]
    for client in outside[:_SHOWN]:
        how = "on MPS without a grant" if client.on_mps else "beside MPS, without limits"
        label = next((gpu.label for gpu in told.gpus if gpu.uuid == client.gpu), client.gpu)
        what = f"pid {client.pid} uses {label} {how}: {client.command}"
        yield Wrong(what, "start it with `mpsd run`, or in a pod that asks for its share")
    if len(outside) > _SHOWN:
        yield Wrong(f"{len(outside) - _SHOWN} more processes are outside the books", "`mpsd status` lists them")


def _agent_blind(facts: NodeFacts) -> Iterator[Wrong]:
    for what in _told(facts).unknown:
        yield Wrong(f"the agent cannot see: {what}", "see its log; until then it grants nothing that this concerns")


def _skews(facts: NodeFacts) -> Iterator[tuple[str, Skew]]:
    """NotKnown where the agent is too old to say its version."""
    told, ours = _told(facts), known(facts.ours)
    if not told.version:
        raise NotKnown(Unknown("the agent is too old to say its version"))
    agent = (Component.AGENT, told.version)
    for version in sorted({domain.version for domain in told.domains if domain.version}):
        if row := skew_of((Component.CONTROL, version), agent):
            yield f"control is of version {version} and the agent of {told.version}", row
    if row := skew_of((Component.COMMAND, ours), agent):
        yield f"{Component.COMMAND} is of version {ours} and the agent of {told.version}", row


def _skewed(facts: NodeFacts) -> Iterator[Wrong]:
    for what, row in _skews(facts):
        if not row.normal:
            yield Wrong(f"{what}: {row.why}", row.remedy)


def _behind(facts: NodeFacts) -> Iterator[Wrong]:
    for what, row in _skews(facts):
        if row.normal:
            yield Wrong(f"{what}: {row.why}", row.remedy)


_AGENT = "GET /v1/node on mpsd.sock"
_VERSIONS = ("agent", "ours")
_VERSIONS_IN = f"{_AGENT}: version, domains[].version"

SILENT_CHECK = Check("agent-silent", Severity.STOPS, "the agent answers", ("agent",), _AGENT, _agent_silent)
AGENT_CHECKS = (
    Check("outside-books", Severity.BREAKS, "every process on a GPU has a grant", ("agent",), _AGENT, _outside_ledger),
    Check("version-skew", Severity.BREAKS, "the agent knows what control writes", _VERSIONS, _VERSIONS_IN, _skewed),
    Check("agent-blind", Severity.BREAKS, "the agent sees everything", ("agent",), _AGENT, _agent_blind),
)
BEHIND_CHECK = Check("version-behind", Severity.NOTE, "all parts are of one version", _VERSIONS, _VERSIONS_IN, _behind)


# The checks of `mpsd doctor` of the domains: their records, their daemons, and whether they take programs.
#
# One rule: a domain is what its record says, as long as the daemon that the record names lives.

RECORDS = "record.json of each domain in the run directory"


def domains_of(facts: NodeFacts) -> tuple[DomainSeen, ...]:
    """NotKnown where there is none to say anything of."""
    domains = known(facts.domains)
    if not domains:
        raise NotKnown(Elsewhere("mpsd has no domain here"))
    return domains


def is_in(one: DomainSeen, state: State) -> bool:
    return one.record.state is state and one.daemon_lives


def _canary_failed(facts: NodeFacts) -> Iterator[Wrong]:
    for one in domains_of(facts):
        if one.record.canary and one.record.canary.problem:
            canary = one.record.canary
            what = f"{one.record.domain}: the canary failed under driver {canary.driver}: {canary.problem}"
            yield Wrong(what, "install a driver that holds limits (docs/operations/canary.md)")


def _canary_doubt(facts: NodeFacts) -> Iterator[Wrong]:
    for one in domains_of(facts):
        if one.record.canary and one.record.canary.warning:
            yield Wrong(f"{one.record.domain}: its canary found: {one.record.canary.warning}", "correct gpus.yaml")


def _record_strange(facts: NodeFacts) -> Iterator[Wrong]:
    remedy = "restart `mpsd control` with the version of this program (programs go on), or use the version it has"
    for why in known(facts.unreadable):
        yield Wrong(f"a domain's record cannot be read: {why}", remedy)
    for one in known(facts.domains):
        if one.record.version != RECORD_VERSION:
            what = f"{one.record.domain}: its record is of version {one.record.version}, and this mpsd reads"
            yield Wrong(f"{what} {RECORD_VERSION}", remedy)


def _not_running(facts: NodeFacts) -> Iterator[Wrong]:
    if known(facts.holder) is not None:
        return
    domains = () if isinstance(facts.domains, Unknown | Elsewhere) else facts.domains
    living = [one.record.domain for one in domains if one.daemon_lives]
    if living:
        what = f"neither `mpsd up` nor `mpsd control` runs: nobody looks after the daemons of {', '.join(living)}"
        yield Wrong(what, "start it again: it takes them over, and no program notices")
    else:
        yield Wrong("mpsd does not run here, and no daemon of its own", "start it with `mpsd up`")


def _domain_stopped(facts: NodeFacts) -> Iterator[Wrong]:
    """Of each domain that takes no programs, why not."""
    for one in domains_of(facts):
        record, state = one.record, one.record.state
        if record.daemon and not one.daemon_lives and state is not State.DOWN:
            what = f"{record.domain}: its control daemon ({record.daemon}) is gone"
            yield Wrong(what, f"see its log ({record.domain}/log/control.log in the run directory) and mpsd's")
        elif what_to_do := remedy(state, record.reason):
            why = f": {record.reason}" if record.reason else ""
            yield Wrong(f"{record.domain} is {after_is(state)}{why}", what_to_do)


def _domain_drains(facts: NodeFacts) -> Iterator[Wrong]:
    for one in domains_of(facts):
        if is_in(one, State.DRAINING) or is_in(one, State.DRAINED):
            why = f": {one.record.reason}" if one.record.reason else ""
            what = f"{one.record.domain} is {one.record.state} and takes no new programs{why}"
            yield Wrong(what, "put it back when the work is done (`kubectl mps undrain NODE`)")


_STOPS = Severity.STOPS

CANARY_CHECK = Check("canary-failed", _STOPS, "the driver holds limits", ("domains",), RECORDS, _canary_failed)
DOMAIN_CHECKS = (
    Check("record-strange", _STOPS, "records are of this version", ("unreadable", "domains"), RECORDS, _record_strange),
    Check("not-running", _STOPS, "mpsd runs", ("holder",), "/proc/locks: the run directory", _not_running),
    Check("domain-stopped", _STOPS, "every domain takes programs", ("domains",), RECORDS, _domain_stopped),
)
DOUBT_CHECK = Check(
    "canary-doubt", Severity.NOTE, "the canary found what gpus.yaml says", ("domains",), RECORDS, _canary_doubt
)
DRAIN_CHECK = Check("draining", Severity.NOTE, "no domain is drained", ("domains",), RECORDS, _domain_drains)


# The checks of `mpsd doctor` of the driver and of what the GPUs are.
#
# One rule: a driver that passed the canary on this machine was tried there, which is worth more than a number here.

# The first driver whose MPS takes memory limits of clients: they came with CUDA 11.5, which shipped with R495
# (developer.nvidia.com/blog/revealing-new-features-in-the-cuda-11-5-toolkit); its release notes ask for 495.29.05.
OLDEST_DRIVER = 495
READ_OFF_DRIVER = 580  # what docs/mps-observed.md was read off
_OLDEST_CAPABILITY = (7, 0)  # from Volta on a client has limits of its own (NVIDIA's manual of MPS)


def _nvml_silent(facts: NodeFacts) -> Iterator[Wrong]:
    if error := known(facts.nvml):
        what, _semicolon, remedy = error.rpartition("; ")
        yield Wrong(what or error, remedy if what else "`nvidia-smi` says whether the driver works")


def _gpu_lost(facts: NodeFacts) -> Iterator[Wrong]:
    gpus = known(facts.gpus)
    if not gpus:
        yield Wrong("the driver answers and shows no GPU", "see `dmesg | grep -i nvrm`, and that one is plugged in")
    for gpu in gpus:
        if gpu.lost:
            yield Wrong(f"gpu{gpu.ordinal} does not answer: {gpu.lost}", "reset it or restart the machine")


def _driver_old(facts: NodeFacts) -> Iterator[Wrong]:
    driver = known(facts.driver)
    branch = _branch(driver)
    if branch is not None and branch < OLDEST_DRIVER:
        yield Wrong(
            f"driver {driver} is too old: MPS takes memory limits from {OLDEST_DRIVER} on",
            f"install driver {READ_OFF_DRIVER} or newer",
        )


def _driver_untested(facts: NodeFacts) -> Iterator[Wrong]:
    """A driver that passed the canary here was tried here, which is worth more than our word."""
    driver = known(facts.driver)
    passed = any(
        one.record.canary and one.record.canary.driver == driver and not one.record.canary.problem
        for one in known(facts.domains)
    )
    if _branch(driver) != READ_OFF_DRIVER and not passed:
        yield Wrong(
            f"nobody has tried driver {driver}: mpsd was written for {READ_OFF_DRIVER}, and no canary has passed here",
            "let `mpsd up` run its canary (policy.yaml: canary)",
        )


def _branch(driver: str) -> int | None:
    """The number before the first point; None where there is none."""
    number = driver.partition(".")[0]
    return int(number) if number.isascii() and number.isdigit() else None


def _capability_old(facts: NodeFacts) -> Iterator[Wrong]:
    for gpu, capability in each(known(facts.gpus), lambda gpu: gpu.capability):
        if _number(capability) < _OLDEST_CAPABILITY:
            yield Wrong(
                f"{gpu} has compute capability {capability}: before 7.0 MPS holds no client to limits",
                "take the card out of this machine, or leave the machine to others",
            )


def _capability_unlisted(facts: NodeFacts) -> Iterator[Wrong]:
    limits = known(facts.limits)
    listed = known(limits.capabilities)
    for gpu, capability in each(known(facts.gpus), lambda gpu: gpu.capability):
        if capability not in listed and _number(capability) >= _OLDEST_CAPABILITY:
            yield Wrong(
                f"{gpu} has compute capability {capability}, which gpus.yaml does not list",
                f"add a row for it under capabilities in {limits.folder}/gpus.yaml",
            )


def _number(capability: str) -> tuple[int, int]:
    major, _point, minor = capability.partition(".")
    return int(major), int(minor)


def _mig(facts: NodeFacts) -> Iterator[Wrong]:
    for gpu, is_on in each(known(facts.gpus), lambda gpu: gpu.mig):
        if is_on:
            remedy = f"switch it off (nvidia-smi -i {gpu.ordinal} -mig 0), or leave this GPU to others"
            yield Wrong(f"MIG is on for {gpu}, and MPS does not share such a GPU", remedy)


_NVML = "NVML"

DRIVER_CHECKS = (
    Check("driver-silent", _STOPS, "the driver answers", ("nvml",), f"{_NVML}: nvmlInit", _nvml_silent),
    Check("gpu-lost", _STOPS, "every GPU answers", ("gpus",), f"{_NVML}: each GPU by its number", _gpu_lost),
    Check("driver-old", _STOPS, "the driver is new enough", ("driver",), f"{_NVML}: its version", _driver_old),
    Check("capability-old", _STOPS, "MPS can limit every GPU", ("gpus",), f"{_NVML}: capability", _capability_old),
    Check(
        "capability-unlisted",
        _STOPS,
        "gpus.yaml lists every GPU's compute capability",
        ("gpus", "limits"),
        f"{_NVML} and gpus.yaml",
        _capability_unlisted,
    ),
    Check("mig-on", _STOPS, "MIG is off", ("gpus",), f"{_NVML}: nvmlDeviceGetMigMode", _mig),
)

UNTESTED_CHECK = Check(
    "driver-untested",
    Severity.NOTE,
    "this driver was tried",
    ("driver", "domains"),
    "NVML: its version, and record.json of each domain in the run directory",
    _driver_untested,
)


# The checks of `mpsd doctor` of what must be there before there are domains: limits files, programs, folders.
#
# One rule: they hold for a machine on which mpsd has never run.


def _limits_unsound(facts: NodeFacts) -> Iterator[Wrong]:
    limits = known(facts.limits)
    for fault in limits.wrong:
        yield Wrong(fault, f"`mpsd check {limits.folder}` says when it is sound")


def _no_program(facts: NodeFacts) -> Iterator[Wrong]:
    if not known(facts.control_program):
        what = "nvidia-cuda-mps-control is not on PATH"
        yield Wrong(what, "install the driver's compute utilities")


def _no_uvm(facts: NodeFacts) -> Iterator[Wrong]:
    if not known(facts.uvm):
        yield Wrong("/dev/nvidia-uvm is not there, and CUDA cannot start without", "run `nvidia-modprobe -u -c 0`")


def _run_directory(facts: NodeFacts) -> Iterator[Wrong]:
    seen = known(facts.run_directory)
    if not seen.is_there:
        return
    if seen.owner != seen.wanted_owner:
        what = f"the run directory {seen.path} belongs to user {seen.owner}, not to user {seen.wanted_owner}"
        yield Wrong(what, f"chown {seen.wanted_owner} {seen.path}, or name another with --run-dir")
    elif seen.unwritable:
        yield Wrong(f"the run directory {seen.path} takes no files: {seen.unwritable}", "mend that, or use --run-dir")


def _not_tmpfs(facts: NodeFacts) -> Iterator[Wrong]:
    seen = known(facts.run_directory)
    if not (seen.is_there and seen.is_system):
        raise NotKnown(Elsewhere("it is not the system's"))
    if (kind := known(seen.filesystem)) != "tmpfs":
        what = f"{seen.path} is on {kind}, not on tmpfs: its gates and sockets outlive a reboot"
        yield Wrong(what, "make /run a tmpfs, as systemd does")


LIMITS_CHECK = Check("limits-unsound", _STOPS, "the limits files are sound", ("limits",), "both files", _limits_unsound)
FILE_CHECKS = (
    Check("no-control-program", _STOPS, "MPS is installed", ("control_program",), "PATH", _no_program),
    Check("no-uvm", _STOPS, "/dev/nvidia-uvm is there", ("uvm",), "/dev", _no_uvm),
    Check(
        "run-directory",
        _STOPS,
        "the run directory can be used",
        ("run_directory",),
        "its owner, mode and file system",
        _run_directory,
    ),
)
TMPFS_CHECK = Check(
    "run-not-tmpfs", Severity.NOTE, "/run/mpsd is on tmpfs", ("run_directory",), "/proc/self/mounts", _not_tmpfs
)
