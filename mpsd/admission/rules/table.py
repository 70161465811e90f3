"""The rules of admission: one row a rule.

One rule: a row says why it is there and what to do about it; how hard it is taken is the policy's.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from mpsd.admission.rules import host
from mpsd.admission.rules import requests as environment
from mpsd.admission.rules import requests as ledger
from mpsd.admission.rules.context import RuleInput
from mpsd.model.policy import RuleId
from mpsd.model.problem import Problem


class RuleScope(StrEnum):
    """Which pods a rule is for."""

    ASKING = "asks for a GPU"
    EVERY = "any"
    NOT_ASKING = "asks for none"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. reason, remedy: for people who read about it; what it finds says both of the case at hand."""

    id: RuleId
    scope: RuleScope
    reason: str
    remedy: str
    look: Callable[[RuleInput], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """A problem and the rule that found it. A rule about amounts has finer names for its problems."""

    rule: RuleId
    problem: Problem


# In the order in which they are reported.
RULES: tuple[Rule, ...] = (
    Rule(
        RuleId.OBJECT_MALFORMED,
        RuleScope.EVERY,
        "a field of the wrong type is read by nobody in the way that was meant",
        "write the type that Kubernetes wants",
        ledger.malformed,
    ),
    Rule(
        RuleId.REQUEST_IMPOSSIBLE,
        RuleScope.ASKING,
        "a request that no GPU can serve waits for ever, or fails on the node",
        "ask for whole GiB that a card has and a CUDA context fits in, and for 5 to 100 percent in steps of 5",
        ledger.impossible_requests,
    ),
    Rule(
        RuleId.OTHER_GPU_TOO,
        RuleScope.ASKING,
        "whole GPUs and MIG devices are counted in other books, and a pod has one NVIDIA_VISIBLE_DEVICES",
        "ask for one of the two",
        ledger.other_gpus,
    ),
    Rule(
        RuleId.GPUS_NOT_TOGETHER,
        RuleScope.ASKING,
        "a request over several GPUs needs one control daemon for them",
        "list GPUs that belong together under domains in the policy",
        ledger.gpus_apart,
    ),
    Rule(
        RuleId.HOST_IPC_MISSING,
        RuleScope.ASKING,
        "without the host's IPC, older drivers let no program reach MPS",
        "add hostIPC: true",
        host.missing_host_ipc,
    ),
    Rule(
        RuleId.HOST_IPC_ADDED,
        RuleScope.ASKING,
        "a pod that is changed should say so",
        "add hostIPC: true",
        host.added_host_ipc,
    ),
    Rule(
        RuleId.HOST_IPC_UNNEEDED,
        RuleScope.ASKING,
        "where the drivers do without (host_ipc is off), it only shares memory with every neighbour",
        "remove hostIPC",
        host.unneeded_host_ipc,
    ),
    Rule(
        RuleId.ENVIRONMENT_BLOCKED,
        RuleScope.ASKING,
        "a variable of its own lifts a container's limits, or gives it another GPU",
        "remove it; the node sets what the container needs",
        environment.blocked_variables,
    ),
    Rule(
        RuleId.ENVIRONMENT_SECRET,
        RuleScope.ASKING,
        "a Secret can hold such a variable, and mpsd reads no Secrets",
        "name the keys under env, each with valueFrom",
        environment.secrets,
    ),
    Rule(
        RuleId.ENVIRONMENT_UNSEEN,
        RuleScope.ASKING,
        "a ConfigMap that is not there yet, or cannot be looked at, can hold such a variable",
        "create it first, or name the keys under env, each with valueFrom",
        environment.unseen_config_maps,
    ),
    Rule(
        RuleId.PRIVILEGED,
        RuleScope.ASKING,
        "a privileged container sees every GPU, and no limit holds it",
        "remove it",
        host.privileged,
    ),
    Rule(
        RuleId.CAPABILITIES,
        RuleScope.ASKING,
        "some capabilities amount to being privileged",
        "remove them",
        host.capabilities,
    ),
    Rule(
        RuleId.HOST_PID,
        RuleScope.ASKING,
        "a pod that sees its neighbours' processes can read and signal them",
        "remove hostPID; MPS works without",
        host.host_pid,
    ),
    Rule(
        RuleId.HOST_ROOT,
        RuleScope.ASKING,
        "root on the host can end its neighbours' programs through MPS's own socket",
        "set runAsUser, or runAsNonRoot: true, or hostUsers: false",
        host.host_root,
    ),
    Rule(
        RuleId.HOST_PATH,
        RuleScope.ASKING,
        "device nodes, runtime sockets and device plugins' folders are ways to a GPU past the limits",
        "mount a narrower path, or another kind of volume",
        host.host_paths,
    ),
    Rule(
        RuleId.SCHEDULER_NAME,
        RuleScope.ASKING,
        "another scheduler does not know what each GPU has left",
        "remove schedulerName",
        ledger.scheduler_name,
    ),
    Rule(
        RuleId.NODE_NAME,
        RuleScope.ASKING,
        "a pod that names its node goes past the scheduler",
        "choose nodes by nodeSelector or affinity",
        ledger.node_name,
    ),
    Rule(
        RuleId.RUNTIME_CLASS,
        RuleScope.ASKING,
        "another runtime may set up GPUs in a way of its own",
        "remove runtimeClassName, or have the class allowed in the policy",
        ledger.runtime_class,
    ),
    Rule(
        RuleId.PLACEMENT_ANNOTATION,
        RuleScope.ASKING,
        "the books are read back from these annotations, so only schedulers may write them",
        "leave them alone",
        ledger.placement_annotations,
    ),
    Rule(
        RuleId.MOUNT_PATH,
        RuleScope.EVERY,
        "a volume there hides what the node mounts, or asks NVIDIA's runtime for a GPU",
        "mount it elsewhere",
        host.mount_paths,
    ),
    Rule(
        RuleId.MPSD_FILES,
        RuleScope.EVERY,
        "whoever has mpsd's files commands its daemons",
        "remove the volume; the node mounts what a container needs",
        host.mpsd_files,
    ),
    Rule(
        RuleId.UNASKED_VISIBLE_DEVICES,
        RuleScope.NOT_ASKING,
        "NVIDIA's runtime gives the GPUs that this variable names, and no books see it",
        "ask for GPU memory under resources.limits",
        environment.visible_devices_unasked,
    ),
    Rule(
        RuleId.UNASKED_PRIVILEGED,
        RuleScope.NOT_ASKING,
        "a privileged container sees every GPU of its node, and no books see it",
        "remove it, or run such pods in an exempt namespace",
        host.privileged_unasked,
    ),
    Rule(
        RuleId.UNASKED_HOST_PATH,
        RuleScope.NOT_ASKING,
        "device nodes and runtime sockets are ways to a GPU that no books see",
        "mount a narrower path, or run such pods in an exempt namespace",
        host.host_paths_unasked,
    ),
)

_FOR_ASKING = tuple(rule for rule in RULES if rule.scope is not RuleScope.NOT_ASKING)
_FOR_OTHERS = tuple(rule for rule in RULES if rule.scope is not RuleScope.ASKING)


def findings(case: RuleInput) -> Iterator[RuleFinding]:
    """What every rule that is for this pod finds, in the order of the table."""
    for rule in _FOR_ASKING if case.asking else _FOR_OTHERS:
        for problem in rule.look(case):
            yield RuleFinding(rule.id, problem)
