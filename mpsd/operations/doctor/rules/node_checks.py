"""Checks of `mpsd doctor`: what MPS needs of a machine, what is in the way, mpsd's domains,
containers.

They hold for a machine on which mpsd has never run. What mpsd has no part in there is no fault.
"""

from collections.abc import Iterator

from mpsd.containers.engines.configuration import CONFIGURATIONS, LAUNCHER, Engine
from mpsd.model.domain import State, after_is, remedy
from mpsd.model.gpu_health import GpuCondition
from mpsd.model.node_view import RECORD_VERSION
from mpsd.model.problem import InvalidInput, shortened
from mpsd.model.seen_gpus import driver_trouble, trouble_of
from mpsd.operations.doctor.rules.checks import (
    CheckTable,
    Finding,
    NotApplicable,
    Severity,
    Unknown,
    each,
    known,
    known_or,
)
from mpsd.operations.doctor.rules.node_facts import AgentSilent, DaemonSeen, DomainSeen, NodeFacts

# NVML's numbers; 0 is DEFAULT
_MODES = {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
_PROHIBITED = 2
_EXCLUSIVE = 3
# What container.te of container-selinux lets containers manage: container_file_t, and
# svirt_sandbox_file_t in its version 1.0.0; container_ro_file_t may only be read. NVIDIA's device
# plugin, too, labels its MPS folders container_file_t:s0 (NVIDIA/k8s-device-plugin#1105). What has
# categories is for one container (container_selinux(8)).
_CONTAINERS_MAY_USE = {"container_file_t", "svirt_sandbox_file_t"}
_RECORDS = "record.json of each domain in the run directory"
_COMPUTE_MODE = "NVML: nvmlDeviceGetComputeMode"
_AGENT = "GET /v1/node on mpsd.sock"
_KUBELET_ROOT = "the agent's --kubelet-dir (MPSD_KUBELET_DIR) is the root that kubelet has"
_ENGINES = "daemon.json of docker, config.toml of containerd, podman's mpsd.conf"
_STOPS, _BREAKS, _NOTE = Severity

_CHECKS = CheckTable[NodeFacts]()
_check = _CHECKS.check


def _domains(facts: NodeFacts) -> tuple[DomainSeen, ...]:
    if found := known(facts.domains):
        return found
    raise NotApplicable("mpsd has no domain here")


def _parted(error: str, remedy: str) -> Finding:
    """error: ends with its remedy behind a semicolon, or has none; then this one."""
    what, _semicolon, own = error.rpartition("; ")
    if what:
        return Finding(what, own)
    return Finding(error, remedy)


@_check(_STOPS, "the limits files are sound", "policy.yaml and gpus.yaml")
def limits_unsound(facts: NodeFacts) -> Iterator[Finding]:
    for fault in known(facts.limits_faults):
        yield Finding(fault, f"correct it, and verify it with `mpsd check {facts.limits_folder}`")


# -- the driver and the GPUs


@_check(_STOPS, "the driver answers", "NVML: nvmlInit")
def driver_silent(facts: NodeFacts) -> Iterator[Finding]:
    if error := known(facts.nvml):
        yield _parted(error, "check that `nvidia-smi` works")


@_check(_STOPS, "every GPU answers", "NVML: each GPU by its number")
def gpu_lost(facts: NodeFacts) -> Iterator[Finding]:
    if not known(facts.gpus):
        to_do = "see `dmesg | grep -i nvrm`, and whether a GPU is plugged in"
        yield Finding("the driver answers and shows no GPU", to_do)
    for gpu in known(facts.gpus):
        if gpu.lost:
            what = f"gpu{gpu.ordinal} does not answer: {gpu.lost}"
            yield Finding(what, "reset it or restart the machine")


@_check(_STOPS, "the driver is new enough", "NVML: its version")
def driver_old(facts: NodeFacts) -> Iterator[Finding]:
    if why := driver_trouble(known(facts.driver)):
        yield _parted(why, "")


@_check(_STOPS, "MPS can limit every GPU, and gpus.yaml lists it", "NVML and gpus.yaml")
def capability(facts: NodeFacts) -> Iterator[Finding]:
    gpu_facts = known(facts.gpu_facts)
    for _gpu, seen in each(known(facts.gpus), lambda gpu: gpu.seen):
        if why := trouble_of(seen, seen, "", gpu_facts):
            yield _parted(why, "")


@_check(_STOPS, "MPS is installed", "PATH")
def no_control_program(facts: NodeFacts) -> Iterator[Finding]:
    if not known(facts.control_program):
        to_do = "install the driver's compute utilities"
        yield Finding("nvidia-cuda-mps-control is not on PATH", to_do)


@_check(_STOPS, "/dev/nvidia-uvm is there", "/dev")
def no_uvm(facts: NodeFacts) -> Iterator[Finding]:
    if not known(facts.uvm):
        what = "/dev/nvidia-uvm is missing; CUDA requires it"
        yield Finding(what, "run `nvidia-modprobe -u -c 0`")


@_check(_STOPS, "the run directory can be used", "its owner, mode and file system")
def run_directory(facts: NodeFacts) -> Iterator[Finding]:
    seen = known(facts.run_directory)
    if seen.owner != seen.wanted_owner:
        whose = f"belongs to user {seen.owner}, not to user {seen.wanted_owner}"
        chown = f"chown {seen.wanted_owner} {seen.path}, or select another with --run-dir"
        yield Finding(f"the run directory {seen.path} {whose}", chown)
    elif seen.unwritable:
        to_do = "fix that, or select another with --run-dir"
        yield Finding(f"the run directory {seen.path} takes no files: {seen.unwritable}", to_do)


# -- leftovers, and what else uses the GPUs


@_check(_STOPS, "every control daemon is mpsd's", f"/proc, and {_RECORDS}")
def other_daemon(facts: NodeFacts) -> Iterator[Finding]:
    """A daemon inside the run directory belongs to the process that holds the directory."""
    daemons = [one.record.daemon for one in known(facts.domains) if one.daemon_lives]
    ours = {daemon.pid for daemon in daemons if daemon}
    directory = f"{known(facts.run_directory).path}/"
    unsure = known(facts.unreadable)
    for daemon in known(facts.daemons):
        is_inside = daemon.pipe.startswith(directory)
        if is_inside and known(facts.holder) is not None:
            continue
        if is_inside and unsure:
            raise Unknown("which daemons are mpsd's is in records that cannot be read")
        if daemon.pid not in ours:
            yield _stray(daemon, was_ours=is_inside and not daemon.pipe_is_there)


def _stray(daemon: DaemonSeen, *, was_ours: bool) -> Finding:
    kill = f"kill {daemon.pid}"
    if was_ours:  # mpsd once started it, and it takes no commands any more
        removed = f"but its folder {daemon.pipe} was removed"
        what = f"a control daemon (pid {daemon.pid}) still runs, {removed}"
        to_do = f"run `{kill}` once its programs have ended, which would lose their GPU"
        return Finding(what, f"{to_do}, and start mpsd again")
    which = f"pid {daemon.pid}"
    stop = kill
    if daemon.pipe:
        which = f"{which} in {daemon.pipe}"
        if daemon.pipe_is_there:
            stop = f"echo quit | CUDA_MPS_PIPE_DIRECTORY={daemon.pipe} nvidia-cuda-mps-control"
    what = f"another control daemon ({which}) runs on this machine; mpsd did not start it"
    return Finding(what, f"stop it ({stop}), and whatever starts it")


@_check(_STOPS, "no compute mode was left behind", f"{_COMPUTE_MODE}, who holds the run directory")
def compute_mode_left(facts: NodeFacts) -> Iterator[Finding]:
    runs = known(facts.holder) is not None or any(one.daemon_lives for one in known(facts.domains))
    recorded = {uuid for one in known(facts.domains) for uuid in one.record.compute_modes}
    for gpu, mode in each(known(facts.gpus), lambda gpu: gpu.compute_mode):
        what = f"{gpu} is in compute mode {_MODES.get(mode, mode)}"
        back = f"run `nvidia-smi -i {gpu.ordinal} -c DEFAULT`"
        if not runs:
            what = f"{what} while no mpsd runs"
            if gpu.uuid in recorded:
                back = "`mpsd control --release` puts it back"
        if mode == _PROHIBITED or (mode and not runs):
            yield Finding(what, back)


@_check(_BREAKS, "nothing can run beside MPS", f"{_COMPUTE_MODE}, and policy.yaml")
def compute_mode_lost(facts: NodeFacts) -> Iterator[Finding]:
    ready = [one for one in _domains(facts) if one.is_in(State.READY)]
    serving = {uuid for one in ready for uuid in one.record.gpus}
    required = known(facts.policy).exclusive_process
    for gpu, mode in each(known(facts.gpus), lambda gpu: gpu.compute_mode):
        if required and gpu.uuid in serving and mode != _EXCLUSIVE:
            run = f"run `nvidia-smi -i {gpu.ordinal} -c EXCLUSIVE_PROCESS`"
            back = f"{run}, or set exclusive_process: false"
            what = f"{gpu} is not in compute mode EXCLUSIVE_PROCESS, as the policy requires"
            yield Finding(f"{what}: programs may run beside MPS, without limits", back)


@_check(_NOTE, "there is no /tmp/nvidia-mps", "the folder")
def default_pipe(facts: NodeFacts) -> Iterator[Finding]:
    if known(facts.default_pipe):
        folder = "/tmp/nvidia-mps"  # noqa: S108
        what = f"{folder} exists, which some runtimes mount into every GPU container"
        yield Finding(f"{what}: that bypasses mpsd", "remove it once no daemon uses it")


# -- mpsd: a domain is what its record says, as long as the daemon that it names lives


@_check(_STOPS, "records are of this version", _RECORDS)
def record_strange(facts: NodeFacts) -> Iterator[Finding]:
    restart = "restart `mpsd control` in the version of this command (programs continue)"
    upgrade = f"{restart}, or use the version that it has"
    for why in known(facts.unreadable):
        yield Finding(f"a domain's record cannot be read: {why}", upgrade)
    for one in known(facts.domains):
        if one.record.version != RECORD_VERSION:
            what = f"{one.record.domain}: its record is of version {one.record.version}"
            yield Finding(f"{what}, and this mpsd reads {RECORD_VERSION}", upgrade)


@_check(_STOPS, "mpsd runs", "the file lock in the run directory")
def not_running(facts: NodeFacts) -> Iterator[Finding]:
    if known(facts.holder) is not None:
        return
    seen = known_or(facts.domains, ())
    if living := [one.record.domain for one in seen if one.daemon_lives]:
        what = "neither `mpsd up` nor `mpsd control` runs: nothing supervises the daemons of"
        to_do = "start it again: it adopts these daemons, and no program is interrupted"
        yield Finding(f"{what} {', '.join(living)}", to_do)
    else:
        yield Finding("neither mpsd nor a daemon of mpsd runs here", "start it with `mpsd up`")


@_check(_STOPS, "every domain takes programs, or drains", _RECORDS)
def domain_stopped(facts: NodeFacts) -> Iterator[Finding]:
    for one in _domains(facts):
        record = one.record
        state = record.state
        if record.daemon and not one.daemon_lives and state is not State.DOWN:
            what = f"{record.domain}: its control daemon ({record.daemon}) is gone"
            log = f"{record.domain}/log/control.log in the run directory"
            yield Finding(what, f"see its log ({log}) and mpsd's")
        elif what_to_do := remedy(state, record.reason):
            what = f"{record.domain} is {after_is(state)}"
            yield Finding(": ".join(filter(None, (what, record.reason))), what_to_do)
        # one that cannot start is never down for long
        elif state is State.STARTING and record.restarts:
            times = "once" if record.restarts == 1 else f"{record.restarts} times in a row"
            what = f"{record.domain} is starting again: its control daemon has ended {times}"
            yield Finding(f"{what}, and none serves since", remedy(State.DOWN, ""))


@_check(_STOPS, "every GPU is well, as far as NVML and mpsd's own contexts tell", _RECORDS)
def gpu_sick(facts: NodeFacts) -> Iterator[Finding]:
    for domain in _domains(facts):
        for one in domain.record.health:
            if one.cause is not None:
                reason, _semicolon, to_do = one.reason.partition("; ")
                yield Finding(f"{one.gpu} is sick: {reason} ({_figures(one)})", to_do)


def _figures(condition: GpuCondition) -> str:
    """Those that NVML gives."""
    seen = condition.seen
    figures = {
        "uncorrectable ECC errors": seen.uncorrected,
        "remapped rows": seen.remapped_rows,
        "rows to be remapped": seen.remap_pending,
        "rows not remapped": seen.remap_failed,
        "pages to be retired": seen.pages_pending,
        "recovery action": seen.recovery,
    }
    told = [f"{what}: {value}" for what, value in figures.items() if value not in (None, "")]
    told += [f"Xid {xid}: {count}" for xid, count in condition.xids.items()]
    return ", ".join(told)


@_check(_STOPS, "the agent answers", _AGENT)
def agent_silent(facts: NodeFacts) -> Iterator[Finding]:
    if not isinstance(facts.agent, AgentSilent):
        known(facts.agent)
    elif known(facts.holder) is None:
        raise NotApplicable("mpsd does not run here")
    else:
        yield _parted(facts.agent.why, "see its log")


@_check(_BREAKS, "the agent reports no trouble", _AGENT)
def agent_blind(facts: NodeFacts) -> Iterator[Finding]:
    status = known(facts.agent)
    for what in status.unknown:
        then = "until this is fixed, nothing that depends on it is granted"
        yield Finding(f"the agent cannot read: {what}", f"the agent's log has details; {then}")
    if status.claims_trouble:
        what = f"no resource claim of {status.claim_driver} is prepared here"
        see = f"see the log of the agent, and that {_KUBELET_ROOT}"
        yield Finding(f"{what}: {status.claims_trouble}", see)


# -- containers and kubelet


def _engines(facts: NodeFacts) -> tuple[Engine, ...]:
    """Those whose configuration names the launcher. Unknown where there is none, or it cannot be
    known."""
    naming: list[Engine] = []
    missing: Unknown = NotApplicable("no container engine here names mpsd")
    for engine, fact in known(facts.engines).items():
        configuration = CONFIGURATIONS[engine]
        try:
            text = known(fact)
            if text is not None and configuration(configuration.file, LAUNCHER).has_runtime(text):
                naming.append(engine)
        except Unknown as unread:
            missing = unread
        except InvalidInput as error:
            missing = Unknown(str(error))
    if not naming:
        raise missing
    return tuple(naming)


@_check(_STOPS, "engines can start containers with GPUs", f"{_ENGINES}, and {LAUNCHER}")
def launcher_broken(facts: NodeFacts) -> Iterator[Finding]:
    engines = _engines(facts)
    names = " and ".join(engines)
    again = f"`mpsd install {engines[0]}` writes it again"
    launcher = known(facts.launcher)
    if launcher is None:
        yield Finding(f"{LAUNCHER} is missing, and {names} would start containers with it", again)
    else:
        for missing in launcher.missing:
            what = f"{LAUNCHER}, with which {names} starts containers, needs {missing}"
            yield Finding(f"{what}, which is gone", again)
        if not launcher.next_found:
            runtimes = " or ".join(launcher.next_runtimes)
            what = f"{LAUNCHER} finds no {runtimes} to hand containers to"
            yield Finding(what, "install one, or name one: --next PATH")
    if not known(facts.toolkit):
        what = f"nvidia-container-runtime is not installed, and containers of {names} get no GPU"
        yield Finding(what, "install the package nvidia-container-toolkit")


@_check(_NOTE, "/dev/char has a link to each device of the GPUs", "/dev")
def device_links(facts: NodeFacts) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#48; documented, not observed."""
    if unlinked := known(facts.unlinked):
        names = shortened(unlinked, 3)
        what = f"{names} have no link in /dev/char: where systemd keeps the containers' cgroups"
        takes = "`systemctl daemon-reload` may take the GPUs from running containers"
        link = "run `nvidia-ctk system create-dev-char-symlinks --create-all` at each boot"
        yield Finding(f"{what}, {takes} (NVIDIA/nvidia-container-toolkit#48)", link)


@_check(_STOPS, "kubelet takes device plugins", "kubelet's root")
def kubelet_folder(facts: NodeFacts) -> Iterator[Finding]:
    if missing := known(facts.kubelet):
        what = f"{missing} is missing: kubelet takes no device plugin, so pods get no share"
        yield Finding(what, f"see that {_KUBELET_ROOT}")


@_check(_BREAKS, "SELinux lets containers use mpsd's folders", "/sys/fs/selinux, labels")
def selinux(facts: NodeFacts) -> Iterator[Finding]:
    for folder, kind in known(facts.selinux).items():
        if kind not in _CONTAINERS_MAY_USE:
            what = f"SELinux is enforcing, and {folder} has the type {kind or '(none)'}"
            change = f"chcon -R -t container_file_t -l s0 {folder}"
            yield Finding(f"{what}, which confined containers may not use", change)


NODE_CHECKS = tuple(_CHECKS)
