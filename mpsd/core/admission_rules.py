"""The rules for a pod that asks for a GPU, beyond what it may ask for: one row a rule.

One rule: a row says why it is there, and what it finds carries the row's name, which never changes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mpsd.core.pod import Pod, VariableSource
from mpsd.core.policy import HostIPC, Policy
from mpsd.core.problem import Problem, shown
from mpsd.core.shape import at

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"

# Values that give a container no GPU, so they take nothing from anybody.
_HARMLESS: Mapping[str, frozenset[str]] = {VISIBLE_DEVICES: frozenset({"", "none", "void"})}


@dataclass(frozen=True, slots=True)
class Finding:
    """Where a rule is broken: a `Problem` that lacks the rule's name."""

    where: str
    value: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. refuses: False gives a warning. reason: why the rule is there, for documentation and `--help`."""

    name: str
    refuses: bool
    reason: str
    look: Callable[[Pod, Policy], Iterator[Finding]]

    def problems(self, pod: Pod, policy: Policy) -> tuple[Problem, ...]:
        return tuple(
            Problem(self.name, found.where, found.value, found.message, found.remedy)
            for found in self.look(pod, policy)
        )


def _host_ipc_missing(pod: Pod, policy: Policy) -> Iterator[Finding]:
    if policy.admission.host_ipc is HostIPC.REQUIRE and not pod.host_ipc:
        yield Finding(
            at(pod.path, "spec", "hostIPC"),
            "",
            "a pod that asks for a GPU needs hostIPC: true, without which its programs do not reach MPS",
            "add hostIPC: true beside containers",
        )


def _host_ipc_added(pod: Pod, policy: Policy) -> Iterator[Finding]:
    if policy.admission.host_ipc is HostIPC.INJECT and not pod.host_ipc:
        yield Finding(
            at(pod.path, "spec", "hostIPC"),
            "",
            "hostIPC: true is added when the pod is created",
            "add hostIPC: true beside containers to have no surprise",
        )


def _environment(pod: Pod, policy: Policy) -> Iterator[Finding]:
    for container in pod.containers:
        for variable in container.variables:
            pattern = _blocking(variable.name, policy)
            if pattern is None or variable.value in _HARMLESS.get(variable.name, ()):
                continue
            value = "taken from elsewhere" if variable.value is None else shown(variable.value)
            yield Finding(
                f"{container.path}.env[{variable.name}]",
                value,
                "a pod may not set this itself: it would lift limits or take a GPU that nobody counts",
                "remove it; the node sets what the container needs",
            )


def _environment_source(pod: Pod, policy: Policy) -> Iterator[Finding]:
    for container in pod.containers:
        for source in container.sources:
            within_reach = _within_reach(source, policy)
            if within_reach:
                prefix = f" behind the prefix {shown(source.prefix)}" if source.prefix else ""
                yield Finding(
                    source.path,
                    f"{source.kind} {shown(source.name)}",
                    f"its keys become variables{prefix} and are not looked at here; "
                    f"it must not set {', '.join(within_reach)}",
                    "name the keys you need under env, each with valueFrom",
                )


def _gpus_together(pod: Pod, policy: Policy) -> Iterator[Finding]:
    label = pod.labels.get(policy.resources.count)
    gpus = int(label) if isinstance(label, str) and label.isascii() and label.isdigit() else 1
    if gpus > max([1, *map(len, policy.domains)]):
        yield Finding(
            at(pod.path, "metadata", "labels", policy.resources.count),
            shown(label),
            f"no {gpus} GPUs share a control daemon, so the pod would wait",
            "list GPUs that belong together under domains in the policy",
        )


# In the order in which they are reported.
RULES: tuple[Rule, ...] = (
    Rule("host-ipc-missing", True, "without the host's IPC, older drivers let no program reach MPS", _host_ipc_missing),
    Rule("host-ipc-added", False, "a pod that is changed should say so", _host_ipc_added),
    Rule("environment-blocked", True, "a variable of its own lifts a container's limits", _environment),
    Rule("environment-unseen", False, "a ConfigMap or Secret can hold such a variable too", _environment_source),
    Rule("gpus-not-together", False, "a request for several GPUs needs one control daemon for them", _gpus_together),
)


def _blocking(name: str, policy: Policy) -> str | None:
    """The pattern that a variable's name matches; None when it may be set."""
    patterns = policy.admission.blocked_environment
    return next((pattern for pattern in patterns if _matches(name, pattern)), None)


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _within_reach(source: VariableSource, policy: Policy) -> tuple[str, ...]:
    """The patterns that some key behind the source's prefix would match."""
    return tuple(
        pattern
        for pattern in policy.admission.blocked_environment
        if pattern.removesuffix("*").startswith(source.prefix) or _matches(source.prefix, pattern)
    )
