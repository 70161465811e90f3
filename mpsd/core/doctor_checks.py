"""The checks of `mpsd doctor`, in the order in which they are to be read: causes before what follows from them.

One rule: a row says what is wrong and the one thing to do, and never more than was seen. Rows of the driver
are in doctor_driver_checks, those of what is around mpsd (container engines, kubelet) in doctor_host_checks.
"""

from collections.abc import Iterator

from mpsd.core.doctor import Check, Severity, Wrong, each
from mpsd.core.doctor_driver_checks import DRIVER_CHECKS, UNTESTED_CHECK
from mpsd.core.doctor_facts import DomainSeen, Elsewhere, NodeFacts, NotKnown, Unknown, known
from mpsd.core.doctor_host_checks import HOST_CHECKS
from mpsd.core.domain_states import State, after_is
from mpsd.core.node_status import NodeStatus
from mpsd.core.node_view import RECORD_VERSION

_MODES = {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}  # NVML's numbers; 0 is DEFAULT
_PROHIBITED, _EXCLUSIVE = 2, 3
_SHOWN = 3  # processes that are named


# -- before there are domains -----------------------------------------------------------------------------------------


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


# -- what is in the way ----------------------------------------------------------------------------------------------


def _other_daemon(facts: NodeFacts) -> Iterator[Wrong]:
    """Whoever holds the run directory has started what serves in it, or taken it over, or says that it is foreign."""
    ours = {one.record.daemon.pid for one in known(facts.domains) if one.record.daemon and one.daemon_lives}
    directory = f"{known(facts.run_directory).path}/"
    unsure = known(facts.unreadable)
    for daemon in known(facts.daemons):
        is_inside = daemon.pipe.startswith(directory)
        if is_inside and unsure and known(facts.holder) is None:
            raise NotKnown(Unknown("whose daemons are mpsd's is in records that cannot be read"))
        if daemon.pid not in ours and not (is_inside and known(facts.holder) is not None):
            where = f" in {daemon.pipe}" if daemon.pipe else ""
            ask = f"echo quit | CUDA_MPS_PIPE_DIRECTORY={daemon.pipe} nvidia-cuda-mps-control" if daemon.pipe else ""
            yield Wrong(
                f"another control daemon (pid {daemon.pid}{where}) is on this machine, which mpsd has not started",
                f"stop it ({ask or f'kill {daemon.pid}'}), and whatever starts it",
            )


def _mode_left(facts: NodeFacts) -> Iterator[Wrong]:
    runs = known(facts.holder) is not None or any(one.daemon_lives for one in known(facts.domains))
    recorded = {uuid for one in known(facts.domains) for uuid in one.record.compute_modes}
    for gpu, mode in each(known(facts.gpus), lambda gpu: gpu.compute_mode):
        if mode and (mode == _PROHIBITED or not runs):
            by_hand = f"nvidia-smi -i {gpu.ordinal} -c DEFAULT"
            remedy = (
                "`mpsd control --release` puts it back" if gpu.uuid in recorded and not runs else f"run `{by_hand}`"
            )
            where = "" if runs else " while no mpsd runs"
            yield Wrong(f"{gpu} is in compute mode {_MODES.get(mode, mode)}{where}", remedy)


def _mode_lost(facts: NodeFacts) -> Iterator[Wrong]:
    serving = {uuid for one in _domains(facts) if _is(one, State.READY) for uuid in one.record.gpus}
    if not serving or not known(known(facts.limits).policy).exclusive_process:
        return
    for gpu, mode in each(known(facts.gpus), lambda gpu: gpu.compute_mode):
        if gpu.uuid in serving and mode != _EXCLUSIVE:
            remedy = f"run `nvidia-smi -i {gpu.ordinal} -c EXCLUSIVE_PROCESS`, or set exclusive_process: false"
            what = f"{gpu} is not in compute mode EXCLUSIVE_PROCESS, as the policy has it"
            yield Wrong(f"{what}: programs may run beside MPS, without limits", remedy)


def _canary_failed(facts: NodeFacts) -> Iterator[Wrong]:
    for one in _domains(facts):
        if one.record.canary and one.record.canary.problem:
            canary = one.record.canary
            what = f"{one.record.domain}: the canary failed under driver {canary.driver}: {canary.problem}"
            yield Wrong(what, "install a driver that holds limits (docs/operations.md, The canary)")


def _canary_doubt(facts: NodeFacts) -> Iterator[Wrong]:
    for one in _domains(facts):
        if one.record.canary and one.record.canary.warning:
            yield Wrong(f"{one.record.domain}: its canary found: {one.record.canary.warning}", "correct gpus.yaml")


# -- what runs -------------------------------------------------------------------------------------------------------


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
    for one in _domains(facts):
        record, state = one.record, one.record.state
        if record.daemon and not one.daemon_lives and state is not State.DOWN:
            what = f"{record.domain}: its control daemon ({record.daemon}) is gone"
            yield Wrong(what, f"see its log ({record.domain}/log/control.log in the run directory) and mpsd's")
        elif state in _REMEDIES and (record.reason or state is not State.STARTING):
            why = f": {record.reason}" if record.reason else ""
            yield Wrong(f"{record.domain} is {after_is(state)}{why}", _REMEDIES[state])


_REMEDIES = {
    State.REFUSED: "mpsd looks again by itself once that is mended",
    State.DOWN: "it is started again by itself; log/control.log beside its record says why it ended",
    State.WEDGED: "wait: after wedged_limit_s it is ended and started anew, its programs with it",
    State.FAULT: "wait: mpsd ends what lingers after fault_grace_s, and it serves again",
    State.STARTING: "mend what the reason says; it serves by itself then",
}


def _domain_drains(facts: NodeFacts) -> Iterator[Wrong]:
    for one in _domains(facts):
        if _is(one, State.DRAINING) or _is(one, State.DRAINED):
            why = f": {one.record.reason}" if one.record.reason else ""
            what = f"{one.record.domain} is {one.record.state} and takes no new programs{why}"
            yield Wrong(what, "put it back when the work is done (`kubectl mps undrain NODE`)")


def _domains(facts: NodeFacts) -> tuple[DomainSeen, ...]:
    """NotKnown where there is none to say anything of."""
    domains = known(facts.domains)
    if not domains:
        raise NotKnown(Elsewhere("mpsd has no domain here"))
    return domains


def _is(one: DomainSeen, state: State) -> bool:
    return one.record.state is state and one.daemon_lives


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


def _outside_books(facts: NodeFacts) -> Iterator[Wrong]:
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


_NVML, _RECORDS = "NVML", "record.json of each domain in the run directory"
_AGENT = "GET /v1/node on mpsd.sock"
_STOPS, _BREAKS, _NOTE = Severity.STOPS, Severity.BREAKS, Severity.NOTE

_OWN_CHECKS = (
    Check("limits-unsound", _STOPS, "the limits files are sound", ("limits",), "both files", _limits_unsound),
    *DRIVER_CHECKS,
    Check("no-control-program", _STOPS, "MPS is installed", ("control_program",), "PATH", _no_program),
    Check("no-uvm", _STOPS, "/dev/nvidia-uvm is there", ("uvm",), "/dev", _no_uvm),
    Check(
        "run-directory",
        _STOPS,
        "the run directory can be used",
        ("run_directory",),
        "its owner and mode",
        _run_directory,
    ),
    Check(
        "other-daemon",
        _STOPS,
        "every control daemon is mpsd's",
        ("daemons", "domains", "run_directory", "unreadable"),
        f"/proc, and {_RECORDS}",
        _other_daemon,
    ),
    Check(
        "compute-mode-left",
        _STOPS,
        "no compute mode was left behind",
        ("gpus", "holder", "domains"),
        f"{_NVML}: nvmlDeviceGetComputeMode, and who holds the run directory",
        _mode_left,
    ),
    Check("canary-failed", _STOPS, "the driver holds limits", ("domains",), _RECORDS, _canary_failed),
    Check(
        "record-strange", _STOPS, "records are of this version", ("unreadable", "domains"), _RECORDS, _record_strange
    ),
    Check("not-running", _STOPS, "mpsd runs", ("holder",), "/proc/locks: the run directory", _not_running),
    Check("domain-stopped", _STOPS, "every domain takes programs", ("domains",), _RECORDS, _domain_stopped),
    Check("agent-silent", _STOPS, "the agent answers", ("agent",), _AGENT, _agent_silent),
)

_LATER_CHECKS = (
    Check(
        "compute-mode-lost",
        _BREAKS,
        "nothing can run beside MPS",
        ("gpus", "domains", "limits"),
        f"{_NVML}: nvmlDeviceGetComputeMode, and policy.yaml",
        _mode_lost,
    ),
    Check("outside-books", _BREAKS, "every process on a GPU has a grant", ("agent",), _AGENT, _outside_books),
    Check("agent-blind", _BREAKS, "the agent sees everything", ("agent",), _AGENT, _agent_blind),
    Check("canary-doubt", _NOTE, "the canary found what gpus.yaml says", ("domains",), _RECORDS, _canary_doubt),
    UNTESTED_CHECK,
    Check("draining", _NOTE, "no domain is drained", ("domains",), _RECORDS, _domain_drains),
    Check("run-not-tmpfs", _NOTE, "/run/mpsd is on tmpfs", ("run_directory",), "/proc/self/mounts", _not_tmpfs),
)

CHECKS = (*_OWN_CHECKS, *_LATER_CHECKS, *HOST_CHECKS)
