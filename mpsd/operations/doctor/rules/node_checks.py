"""Checks of `mpsd doctor` of mpsd on a node: its domains, its agent, and what containers are started with; and all
checks of a node, in their order.

A domain is what its record says, as long as the daemon that the record names lives. What mpsd has no part in on this
machine is no fault: an engine counts only where its configuration names mpsd's launcher.
"""

from collections.abc import Iterator

from mpsd.containers.engines.configuration import CONFIGURATIONS, LAUNCHER, Engine
from mpsd.model.cluster_status import grant_rows
from mpsd.model.domain import GONE, State, after_is, remedy
from mpsd.model.node_view import RECORD_VERSION
from mpsd.model.problem import InvalidInput
from mpsd.mps.rules.memory_caps import CANARY_FOUND, NOT_SET
from mpsd.operations.doctor.rules.checks import CheckTable, Finding, NotApplicable, Severity, Unknown, at_most, known
from mpsd.operations.doctor.rules.components import claim_left, skews
from mpsd.operations.doctor.rules.machine_checks import MACHINE_CHECKS, RECORDS, AgentSilent, NodeFacts, domains, parted

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


@_check("canary-failed", _STOPS, "the driver holds limits", how=RECORDS)
def _canary_failed(facts: NodeFacts) -> Iterator[Finding]:
    for one in domains(facts):
        if (canary := one.record.canary) and canary.problem:
            what = f"{one.record.domain}: the canary failed under driver {canary.driver}: {canary.problem}"
            yield Finding(what, "install a driver that holds limits (docs/operations/canary.md)")


@_check("canary-doubt", _NOTE, "the canary agrees with gpus.yaml", how=RECORDS)
def _canary_doubt(facts: NodeFacts) -> Iterator[Finding]:
    for one in domains(facts):
        if one.record.canary and one.record.canary.warning:
            yield Finding(f"{one.record.domain}: the canary found: {one.record.canary.warning}", "correct gpus.yaml")


@_check("record-strange", _STOPS, "records are of this version", how=RECORDS)
def _record_strange(facts: NodeFacts) -> Iterator[Finding]:
    restart = "restart `mpsd control` in the version of this command (programs continue)"
    upgrade = f"{restart}, or use the version that it has"
    for why in known(facts.unreadable):
        yield Finding(f"a domain's record cannot be read: {why}", upgrade)
    for one in known(facts.domains):
        if one.record.version != RECORD_VERSION:
            what = f"{one.record.domain}: its record is of version {one.record.version}, and this mpsd reads"
            yield Finding(f"{what} {RECORD_VERSION}", upgrade)


@_check("not-running", _STOPS, "mpsd runs", how="/proc/locks: the run directory")
def _not_running(facts: NodeFacts) -> Iterator[Finding]:
    if known(facts.holder) is not None:
        return
    seen = () if isinstance(facts.domains, Unknown) else facts.domains
    if living := [one.record.domain for one in seen if one.daemon_lives]:
        what = f"neither `mpsd up` nor `mpsd control` runs: nothing supervises the daemons of {', '.join(living)}"
        yield Finding(what, "start it again: it adopts these daemons, and no program is interrupted")
    else:
        yield Finding("neither mpsd nor a daemon of mpsd runs here", "start it with `mpsd up`")


@_check("domain-stopped", _STOPS, "every domain takes programs", how=RECORDS)
def _domain_stopped(facts: NodeFacts) -> Iterator[Finding]:
    for one in domains(facts):
        record, state = one.record, one.record.state
        if record.daemon and not one.daemon_lives and state is not State.DOWN:
            what = f"{record.domain}: its control daemon ({record.daemon}) is gone"
            yield Finding(what, f"see its log ({record.domain}/log/control.log in the run directory) and mpsd's")
        elif what_to_do := remedy(state, record.reason):
            why = f": {record.reason}" if record.reason else ""
            yield Finding(f"{record.domain} is {after_is(state)}{why}", what_to_do)
        elif state is State.STARTING and record.restarts:  # one that cannot start is never down for long
            times = "once" if record.restarts == 1 else f"{record.restarts} times in a row"
            what = f"{record.domain} is starting again: its control daemon has ended {times}, and none serves since"
            yield Finding(what, remedy(State.DOWN, ""))


@_check("draining", _NOTE, "no domain is drained", how=RECORDS)
def _draining(facts: NodeFacts) -> Iterator[Finding]:
    for one in domains(facts):
        if one.is_in(State.DRAINING) or one.is_in(State.DRAINED):
            why = f": {one.record.reason}" if one.record.reason else ""
            what = f"{one.record.domain} is {one.record.state} and takes no new programs{why}"
            back = "when the work is done, put it back into use (`kubectl mps undrain NODE`)"
            yield Finding(what, "nothing is to be done" if one.record.reason == GONE else back)


@_check("sm-partitions", _NOTE, "threads are shared", how="record.json of each domain")
def _sm_partitions(facts: NodeFacts) -> Iterator[Finding]:
    """What mpsd does there follows from NVIDIA's documentation alone."""
    seen, wanted = domains(facts), known(facts.policy).threads
    if divided := [one.record.domain for one in seen if one.record.partitioned]:
        what = f"the SMs of {', '.join(divided)} are divided into static partitions: documented, not observed"
        yield Finding(what, "read docs/hardware.md, and run the contract tests on a GPU whose driver has them")
    for one in seen:
        if one.daemon_lives and one.record.partitioned is not (wanted == "exclusive"):
            has = "exclusive" if one.record.partitioned else "shared"
            what = (
                f"{one.record.domain}: its control daemon was started with threads: {has}, and the policy has {wanted}"
            )
            yield Finding(what, "drain the GPU and restart `mpsd control`; a daemon keeps its mode until it ends")


# -- the agent ---------------------------------------------------------------------------------------------------------


@_check("agent-silent", _STOPS, "the agent answers", how=_AGENT)
def _agent_silent(facts: NodeFacts) -> Iterator[Finding]:
    if not isinstance(facts.agent, AgentSilent):
        known(facts.agent)
    elif known(facts.holder) is None:
        raise NotApplicable("mpsd does not run here")
    else:
        yield parted(facts.agent.why, "see its log")


@_check("outside-books", _BREAKS, "every process on a GPU has a grant", how=_AGENT)
def _outside_ledger(facts: NodeFacts) -> Iterator[Finding]:
    status = known(facts.agent)
    if status.clients is None:
        raise Unknown("NVML does not report to the agent which processes use the GPUs")
    labels = {gpu.uuid: gpu.label for gpu in status.gpus}
    findings = []
    for client in status.clients:
        if client.grant is None:
            how = "on MPS without a grant" if client.on_mps else "beside MPS, without limits"
            what = f"pid {client.pid} uses {labels.get(client.gpu, client.gpu)} {how}: {client.command}"
            findings.append(Finding(what, "start it with `mpsd run`, or in a pod that requests its share"))
    yield from at_most(_SHOWN, findings, "processes use a GPU without a grant", "`mpsd status` lists them")


@_check("agent-blind", _BREAKS, "the agent sees everything", how=_AGENT)
def _agent_blind(facts: NodeFacts) -> Iterator[Finding]:
    to_do = "the agent's log has details; until this is fixed, nothing that depends on it is granted"
    for what in known(facts.agent).unknown:
        yield Finding(f"the agent cannot read: {what}", to_do)


@_check("memory-caps", _NOTE, "no grant relies on memory limits of cgroups", how=f"{_AGENT}: grants[].memory_cap")
def _memory_caps(facts: NodeFacts) -> Iterator[Finding]:
    """What mpsd expects of them follows from NVIDIA's documentation alone."""
    grants = known(facts.agent).grants
    if held := sum(grant.memory_cap == "cgroup" for grant in grants):
        who = "a grant is" if held == 1 else f"{held} grants are"
        what = f"{who} held by memory limits of cgroups: how these hold programs on MPS is documented, not observed"
        yield Finding(what, "run the contract tests on this driver; `memory_cap: mps` in policy.yaml does without them")
    reasons = (grant.memory_cap_why for grant in grants if grant.memory_cap_why.startswith((CANARY_FOUND, NOT_SET)))
    for why in dict.fromkeys(reasons):
        what = f"grants are held by MPS's own limit and the watchdog alone: {why}"
        yield Finding(what, "see the log of `mpsd control` and the driver's (`dmesg`)")


def _skews(facts: NodeFacts, *, normal: bool) -> Iterator[Finding]:
    status = known(facts.agent)
    if not status.version:
        raise Unknown("the agent is too old to report its version")
    for row, finding in skews(status.version, [domain.version for domain in status.domains], facts.ours):
        if row.normal is normal:
            yield finding


@_check("version-skew", _BREAKS, "the agent can read what control writes", how=_VERSIONS)
def _skewed(facts: NodeFacts) -> Iterator[Finding]:
    return _skews(facts, normal=False)


@_check("version-behind", _NOTE, "all parts are of one version", how=_VERSIONS)
def _behind(facts: NodeFacts) -> Iterator[Finding]:
    return _skews(facts, normal=True)


# -- resource claims ---------------------------------------------------------------------------------------------------


@_check("claims-unserved", _STOPS, "resource claims are served where they are to be", how=f"{_AGENT}: claims_trouble")
def _claims_unserved(facts: NodeFacts) -> Iterator[Finding]:
    status = known(facts.agent)
    if status.claims_trouble:
        see = "see the log of the agent, and whether its --kubelet-dir (MPSD_KUBELET_DIR) is the root that kubelet has"
        yield Finding(f"no resource claim of {status.claim_driver} is prepared here: {status.claims_trouble}", see)


@_check("claims-left", _NOTE, "no claim is left where none are served", how=f"{_AGENT}: claim_driver, grants[].claim")
def _claims_left(facts: NodeFacts) -> Iterator[Finding]:
    status = known(facts.agent)
    for grant in () if status.claim_driver else grant_rows(status):
        if grant.claim and grant.pod:
            yield claim_left(grant.claim, grant.pod, grant.shared_with, "this node")


# -- containers and kubelet --------------------------------------------------------------------------------------------


def _engines(facts: NodeFacts) -> tuple[Engine, ...]:
    """Those whose configuration names the launcher. Unknown where there is none, or it cannot be known."""
    naming: list[Engine] = []
    missing: Unknown = NotApplicable("no container engine here names mpsd")
    for engine, text in known(facts.engines).items():
        configuration = CONFIGURATIONS[engine]
        if isinstance(text, Unknown):
            missing = text
            continue
        try:
            if text is not None and configuration(configuration.file, LAUNCHER).has_runtime(text):
                naming.append(engine)
        except InvalidInput as error:
            missing = Unknown(str(error))
    if not naming:
        raise missing
    return tuple(naming)


@_check("launcher-broken", _STOPS, "mpsd-runtime can start", how=f"{_ENGINES}, and {LAUNCHER}")
def _launcher(facts: NodeFacts) -> Iterator[Finding]:
    engines = _engines(facts)
    names, again = " and ".join(engines), f"`mpsd install {engines[0]}` writes it again"
    launcher = known(facts.launcher)
    if launcher is None:
        yield Finding(f"{LAUNCHER} is missing, and {names} would start containers with it", again)
        return
    for missing in launcher.missing:
        yield Finding(f"{LAUNCHER}, with which {names} starts containers, needs {missing}, which is gone", again)
    if not launcher.next_found:
        what = f"{LAUNCHER} finds no {' or '.join(launcher.next_runtimes)} to hand containers to"
        yield Finding(what, "install one, or name one: --next PATH")


@_check("no-toolkit", _STOPS, "containers can have GPUs", how=f"{_ENGINES}, and program folders")
def _toolkit(facts: NodeFacts) -> Iterator[Finding]:
    engines = _engines(facts)
    if not known(facts.toolkit):
        what = f"nvidia-container-runtime is not installed, and containers of {' and '.join(engines)} get no GPU"
        yield Finding(what, "install the package nvidia-container-toolkit")


@_check("kubelet-folder", _STOPS, "kubelet takes device plugins", how="kubelet's root")
def _kubelet(facts: NodeFacts) -> Iterator[Finding]:
    if missing := known(facts.kubelet):
        what = f"{missing} is missing: kubelet takes no device plugin, so pods get no share"
        yield Finding(what, "give `mpsd agent` the root that kubelet has: --kubelet-dir (MPSD_KUBELET_DIR)")


@_check("selinux", _BREAKS, "SELinux lets containers use mpsd's folders", how="/sys/fs/selinux, labels")
def _selinux(facts: NodeFacts) -> Iterator[Finding]:
    for folder, kind in known(facts.selinux).items():
        if kind not in _CONTAINERS_MAY_USE:
            what = f"SELinux is enforcing, and {folder} has the type {kind or '(none)'}, which confined containers"
            yield Finding(f"{what} may not use", f"chcon -R -t container_file_t -l s0 {folder}")


@_check("default-pipe", _NOTE, "there is no /tmp/nvidia-mps", how="the folder")
def _default_pipe(facts: NodeFacts) -> Iterator[Finding]:
    if known(facts.default_pipe):
        what = "/tmp/nvidia-mps exists: some runtimes mount it into every GPU container, which bypasses mpsd"  # noqa: S108
        yield Finding(what, "remove it once no daemon uses it")


NODE_CHECKS = (*MACHINE_CHECKS, *_CHECKS)
