"""Checks of `mpsd doctor` of mpsd on a node: its domains, its agent, and what containers are started with; and all
checks of a node, in their order.

A domain is what its record says, as long as the daemon that the record names lives. What mpsd has no part in on this
machine is no fault: an engine counts only where its configuration names mpsd's launcher.
"""

from collections.abc import Iterator

from mpsd.containers.engines.change import LAUNCHER, Engine, has_runtime
from mpsd.model.domain import State, after_is, remedy
from mpsd.model.node_status import NodeStatus
from mpsd.model.node_view import RECORD_VERSION
from mpsd.model.problem import InvalidInput
from mpsd.operations.doctor.rules.checks import (
    Check,
    CheckTable,
    Finding,
    NotApplicable,
    NotKnown,
    Severity,
    Unknown,
    at_most,
    known,
)
from mpsd.operations.doctor.rules.components import Skew, skews
from mpsd.operations.doctor.rules.machine_checks import MACHINE_CHECKS, RECORDS, domains_of, is_in
from mpsd.operations.doctor.rules.node_facts import NodeFacts

_SHOWN = 3  # processes that are named
_AGENT = "GET /v1/node on mpsd.sock"
_VERSIONS = f"{_AGENT}: version, domains[].version"
_ENGINES = "daemon.json of docker, config.toml of containerd, podman's mpsd.conf"
# What container.te of container-selinux lets containers manage: container_file_t, and svirt_sandbox_file_t in
# its version 1.0.0; container_ro_file_t may only be read. NVIDIA's device plugin, too, labels its MPS folders
# container_file_t:s0 (NVIDIA/k8s-device-plugin#1105). What has categories is for one container (container_selinux(8)).
_CONTAINERS_MAY_USE = {"container_file_t", "svirt_sandbox_file_t"}
_STOPS, _BREAKS, _NOTE = Severity

_CHECKS = CheckTable[NodeFacts]()
_check = _CHECKS.check


# -- domains -----------------------------------------------------------------------------------------------------------


@_check("canary-failed", _STOPS, "the driver holds limits", "domains", how=RECORDS)
def _canary_failed(facts: NodeFacts) -> Iterator[Finding]:
    for one in domains_of(facts):
        if (canary := one.record.canary) and canary.problem:
            what = f"{one.record.domain}: the canary failed under driver {canary.driver}: {canary.problem}"
            yield Finding(what, "install a driver that holds limits (docs/operations/canary.md)")


@_check("canary-doubt", _NOTE, "the canary found what gpus.yaml says", "domains", how=RECORDS)
def _canary_doubt(facts: NodeFacts) -> Iterator[Finding]:
    for one in domains_of(facts):
        if one.record.canary and one.record.canary.warning:
            yield Finding(f"{one.record.domain}: its canary found: {one.record.canary.warning}", "correct gpus.yaml")


@_check("record-strange", _STOPS, "records are of this version", "unreadable", "domains", how=RECORDS)
def _record_strange(facts: NodeFacts) -> Iterator[Finding]:
    upgrade = "restart `mpsd control` with the version of this program (programs go on), or use the version it has"
    for why in known(facts.unreadable):
        yield Finding(f"a domain's record cannot be read: {why}", upgrade)
    for one in known(facts.domains):
        if one.record.version != RECORD_VERSION:
            what = f"{one.record.domain}: its record is of version {one.record.version}, and this mpsd reads"
            yield Finding(f"{what} {RECORD_VERSION}", upgrade)


@_check("not-running", _STOPS, "mpsd runs", "holder", how="/proc/locks: the run directory")
def _not_running(facts: NodeFacts) -> Iterator[Finding]:
    if known(facts.holder) is not None:
        return
    domains = () if isinstance(facts.domains, Unknown | NotApplicable) else facts.domains
    if living := [one.record.domain for one in domains if one.daemon_lives]:
        what = f"neither `mpsd up` nor `mpsd control` runs: nothing supervises the daemons of {', '.join(living)}"
        yield Finding(what, "start it again: it adopts them, and no program is interrupted")
    else:
        yield Finding("mpsd does not run here, and no daemon of its own", "start it with `mpsd up`")


@_check("domain-stopped", _STOPS, "every domain takes programs", "domains", how=RECORDS)
def _domain_stopped(facts: NodeFacts) -> Iterator[Finding]:
    for one in domains_of(facts):
        record, state = one.record, one.record.state
        if record.daemon and not one.daemon_lives and state is not State.DOWN:
            what = f"{record.domain}: its control daemon ({record.daemon}) is gone"
            yield Finding(what, f"see its log ({record.domain}/log/control.log in the run directory) and mpsd's")
        elif what_to_do := remedy(state, record.reason):
            why = f": {record.reason}" if record.reason else ""
            yield Finding(f"{record.domain} is {after_is(state)}{why}", what_to_do)


@_check("draining", _NOTE, "no domain is drained", "domains", how=RECORDS)
def _draining(facts: NodeFacts) -> Iterator[Finding]:
    for one in domains_of(facts):
        if is_in(one, State.DRAINING) or is_in(one, State.DRAINED):
            why = f": {one.record.reason}" if one.record.reason else ""
            what = f"{one.record.domain} is {one.record.state} and takes no new programs{why}"
            yield Finding(what, "put it back when the work is done (`kubectl mps undrain NODE`)")


# -- the agent ---------------------------------------------------------------------------------------------------------


@_check("agent-silent", _STOPS, "the agent answers", "agent", how=_AGENT)
def _agent_silent(facts: NodeFacts) -> Iterator[Finding]:
    agent = known(facts.agent)
    if agent.status:
        return
    if known(facts.holder) is None:
        raise NotKnown(NotApplicable("mpsd does not run here"))
    what, _semicolon, what_to_do = agent.why_not.rpartition("; ")
    yield Finding(what or agent.why_not, what_to_do if what else "see its log")


def _status(facts: NodeFacts) -> NodeStatus:
    """What the agent reports. NotKnown where it does not answer."""
    agent = known(facts.agent)
    if agent.status is None:
        raise NotKnown(Unknown(agent.why_not))
    return agent.status


@_check("outside-books", _BREAKS, "every process on a GPU has a grant", "agent", how=_AGENT)
def _outside_ledger(facts: NodeFacts) -> Iterator[Finding]:
    status = _status(facts)
    if status.clients is None:
        raise NotKnown(Unknown("NVML does not tell the agent which processes use the GPUs"))
    labels = {gpu.uuid: gpu.label for gpu in status.gpus}
    findings = []
    for client in status.clients:
        if client.grant is None:
            how = "on MPS without a grant" if client.on_mps else "beside MPS, without limits"
            what = f"pid {client.pid} uses {labels.get(client.gpu, client.gpu)} {how}: {client.command}"
            findings.append(Finding(what, "start it with `mpsd run`, or in a pod that requests its share"))
    yield from at_most(_SHOWN, findings, "processes use a GPU without a grant", "`mpsd status` lists them")


@_check("agent-blind", _BREAKS, "the agent sees everything", "agent", how=_AGENT)
def _agent_blind(facts: NodeFacts) -> Iterator[Finding]:
    for what in _status(facts).unknown:
        yield Finding(f"the agent cannot see: {what}", "see its log; until then it grants nothing that this concerns")


def _skews(facts: NodeFacts) -> Iterator[tuple[str, Skew]]:
    """NotKnown where the agent is too old to report its version."""
    status, ours = _status(facts), known(facts.ours)
    if not status.version:
        raise NotKnown(Unknown("the agent is too old to report its version"))
    yield from skews(status.version, {domain.version for domain in status.domains if domain.version}, ours)


@_check("version-skew", _BREAKS, "the agent can read what control writes", "agent", "ours", how=_VERSIONS)
def _skewed(facts: NodeFacts) -> Iterator[Finding]:
    for what, row in _skews(facts):
        if not row.normal:
            yield Finding(f"{what}: {row.why}", row.remedy)


@_check("version-behind", _NOTE, "all parts are of one version", "agent", "ours", how=_VERSIONS)
def _behind(facts: NodeFacts) -> Iterator[Finding]:
    for what, row in _skews(facts):
        if row.normal:
            yield Finding(f"{what}: {row.why}", row.remedy)


# -- containers and kubelet --------------------------------------------------------------------------------------------


def _engines(facts: NodeFacts) -> tuple[Engine, ...]:
    """Those whose configuration names the launcher. NotKnown where there is none, or it cannot be known."""
    naming, unread = [], ""
    for seen in known(facts.engines):
        text = seen.text
        if isinstance(text, Unknown | NotApplicable):
            unread = f"{seen.file} cannot be read: {text.why}"
            continue
        try:
            if text is not None and has_runtime(seen.engine, text, seen.file, LAUNCHER):
                naming.append(seen.engine)
        except InvalidInput as error:
            unread = str(error)
    if naming:
        return tuple(naming)
    raise NotKnown(Unknown(unread) if unread else NotApplicable("no container engine here names mpsd"))


@_check("launcher-broken", _STOPS, "mpsd-runtime can start", "engines", "launcher", how=f"{_ENGINES}, and {LAUNCHER}")
def _launcher(facts: NodeFacts) -> Iterator[Finding]:
    engines = _engines(facts)
    names, again = " and ".join(engines), f"`mpsd install {engines[0]}` writes it anew"
    launcher = known(facts.launcher)
    if not launcher.is_there:
        yield Finding(f"{launcher.path} is missing, and {names} would start containers with it", again)
        return
    for missing in known(launcher.missing):
        yield Finding(f"{launcher.path}, with which {names} starts containers, needs {missing}, which is gone", again)
    if not launcher.next_found:
        tried = " or ".join(launcher.next_runtimes)
        yield Finding(
            f"{launcher.path} finds no {tried} to hand containers to", "install one, or name one: --next PATH"
        )


@_check("no-toolkit", _STOPS, "containers can have GPUs", "engines", "toolkit", how=f"{_ENGINES}, and program folders")
def _toolkit(facts: NodeFacts) -> Iterator[Finding]:
    engines = _engines(facts)
    if not known(facts.toolkit):
        what = f"nvidia-container-runtime is not installed, and containers of {' and '.join(engines)} get no GPU"
        yield Finding(what, "install the package nvidia-container-toolkit")


@_check("kubelet-folder", _STOPS, "kubelet takes device plugins", "kubelet", how="kubelet's root")
def _kubelet(facts: NodeFacts) -> Iterator[Finding]:
    kubelet = known(facts.kubelet)
    if not kubelet.device_plugins:
        what = f"{kubelet.directory}/device-plugins is missing: kubelet takes no device plugin, so pods get no share"
        yield Finding(what, "give `mpsd agent` the root that kubelet has: --kubelet-dir (MPSD_KUBELET_DIR)")


@_check("selinux", _BREAKS, "SELinux lets containers in", "selinux", how="/sys/fs/selinux, labels")
def _selinux(facts: NodeFacts) -> Iterator[Finding]:
    selinux = known(facts.selinux)
    for folder, kind in selinux.types if selinux.enforcing else ():
        if kind not in _CONTAINERS_MAY_USE:
            what = f"SELinux is enforcing, and {folder} has the type {kind or '(none)'}, which confined containers"
            yield Finding(f"{what} may not use", f"chcon -R -t container_file_t -l s0 {folder}")


@_check("default-pipe", _NOTE, "there is no /tmp/nvidia-mps", "default_pipe", how="its folder")
def _default_pipe(facts: NodeFacts) -> Iterator[Finding]:
    if known(facts.default_pipe):
        what = "/tmp/nvidia-mps exists: some runtimes mount it into every GPU container, past mpsd"  # noqa: S108
        yield Finding(what, "see that no daemon serves in it, then remove it")


NODE_CHECKS: tuple[Check[NodeFacts], ...] = (*MACHINE_CHECKS, *_CHECKS)
