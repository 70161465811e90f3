"""What the Helm chart has in the place of words of the files that kustomize reads: the table of `chart`.

An edit is a pair: what stands in the file, once or more than once, and what the template has there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

MANIFESTS = Path(__file__).parents[2] / "manifests"
Edit = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Made:
    """source: below manifests/. when: the condition of the whole file; documents: of single ones, by `Kind name`."""

    source: str
    edits: tuple[Edit, ...] = ()
    when: str = ""
    documents: Mapping[str, str] = field(default_factory=dict)


# -- conditions --

MODERN, OLD = '(include "mpsd.since" (list . 30))', '(not (include "mpsd.since" (list . 30)))'
OWN, GIVEN = '(eq .Values.webhook.tls.source "own")', '(ne .Values.webhook.tls.source "own")'
CERT_MANAGER, SECRET = (f'(eq .Values.webhook.tls.source "{source}")' for source in ("cert-manager", "secret"))
CLAIMS = ".Values.dra.enabled"
WEBHOOK, SCHEDULER = ".Values.webhook.enabled", ".Values.scheduler.enabled"
TAINTED = ".Values.agent.startupTaint"
SECOND, EXTENDER = (f'(and {SCHEDULER} (eq .Values.scheduler.mode "{mode}"))' for mode in ("second", "extender"))


def conditional(condition: str, text: str) -> str:
    """Whole lines that are there on this condition alone."""
    return f"{{{{- if {condition} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n"


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}".rstrip() + "\n" for line in text.splitlines())


def _more(first: str, condition: str, text: str) -> Edit:
    """After this line, on this condition, these too."""
    return f"{first}\n", f"{first}\n{conditional(condition, text)}"


# -- pods --

# The values of each container's resources, by its name.
RESOURCES = {
    "control": "control.resources",
    "agent": "agent.resources",
    "webhook": "webhook.resources",
    "scheduler": "scheduler.resources",
    "kube-scheduler": "scheduler.kubeScheduler.resources",
}
# In whatever file they stand.
EVERYWHERE: tuple[Edit, ...] = (
    (
        "          image: mpsd\n",
        """\
          image: {{ include "mpsd.image" . }}
          {{- with .Values.image.pullPolicy }}
          imagePullPolicy: {{ . }}
          {{- end }}
""",
    ),
    (
        "      priorityClassName: system-node-critical\n",
        """\
      {{- include "mpsd.pullSecrets" . | nindent 6 }}
      {{- with .Values.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      priorityClassName: {{ .Values.priorityClass.node }}
""",
    ),
    (
        "      priorityClassName: system-cluster-critical",
        """\
      {{- include "mpsd.pullSecrets" . | nindent 6 }}
      priorityClassName: {{ .Values.priorityClass.cluster }}""",
    ),
    (
        "      nodeSelector:\n        ack.node.gpu.schedule: mps\n",
        '      nodeSelector: {{- include "mpsd.nodeSelector" . | nindent 8 }}\n',
    ),
)


def _block(source: str, first: str) -> str:
    """The lines of a file below manifests/ that follow `first` and are indented further, without that indentation."""
    lines = (MANIFESTS / source).read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if line.strip() == first)
    depth = len(lines[at]) - len(lines[at].lstrip())
    after = [len(line) - len(line.lstrip()) > depth for line in lines[at + 1 :]]
    end = at + 1 + (after.index(False) if False in after else len(after))
    return "".join(f"{line[depth + 2 :]}\n" for line in lines[at + 1 : end])


def _unless_empty(values: str, name: str) -> str:
    return (
        f"      {{{{- with .Values.{values} }}}}\n      {name}: {{{{- toYaml . | nindent 8 }}}}\n      {{{{- end }}}}\n"
    )


def _where(values: str) -> Edit:
    """The nodes of a Deployment that names none itself."""
    lines = "".join(_unless_empty(f"{values}.{name}", name) for name in ("nodeSelector", "tolerations"))
    return "      automountServiceAccountToken: true\n", f"      automountServiceAccountToken: true\n{lines}"


def _affinity(source: str) -> Edit:
    """Each term by which mpsd leaves a node for an upgrade of its driver, with those of the values."""
    terms = _block(source, "nodeSelectorTerms:")
    shipped = "      affinity:\n        nodeAffinity:\n          requiredDuringSchedulingIgnoredDuringExecution:\n"
    read = f"      {{{{- $terms := fromYamlArray `\n{terms}` }}}}\n"
    used = '      affinity: {{- include "mpsd.affinity" (list . $terms) | nindent 8 }}\n'
    return f"{shipped}            nodeSelectorTerms:\n{indented(terms, 14)}", read + used


def _tolerations(why: str) -> Edit:
    return f"      tolerations:\n        - {{operator: Exists}} # {why}\n", _unless_empty("tolerations", "tolerations")


def _arguments(old: str, values: str, *arguments: str) -> Edit:
    given = "".join(f"            - {argument}\n" for argument in arguments)
    more = f"            {{{{- range .Values.{values}.extraArgs }}}}\n            - {{{{ toJson . }}}}\n"
    return f"          args: {old}\n", f"          args:\n{given}{more}            {{{{- end }}}}\n"


def _claims() -> tuple[Edit, ...]:
    """What components/dra adds to the agent."""
    places = {"env": 10, "volumeMounts": 10, "volumes": 6}
    return tuple(
        _more(f"{' ' * by}{name}:", CLAIMS, indented(_block("components/dra/agent.yaml", f"{name}:"), by + 2))
        for name, by in places.items()
    )


def _claim_rights(file: str) -> str:
    """The rules that components/dra adds."""
    patches = yaml.safe_load((MANIFESTS / "components/dra" / file).read_text())
    rules = yaml.safe_dump([patch["value"] for patch in patches], sort_keys=False, default_flow_style=None)
    return indented(rules, 2)


_CONTROL = (
    _affinity("base/control/daemonset.yaml"),
    _tolerations("a labelled node gets it despite its taints"),
    ("Seconds: 330\n", "Seconds: {{ add (ceil .Values.policy.graces.drain_s) 30 }}\n"),
    ("updateStrategy: {type: OnDelete}", "updateStrategy: {type: {{ .Values.control.updateStrategy }}}"),
    _arguments(
        "[control, --daemon-cgroup=/host/sys/fs/cgroup] # the host's, mounted below",
        "control",
        *("control", "--daemon-cgroup=/host/sys/fs/cgroup # the host's, mounted below"),
    ),
)
_STRATEGY = (
    "            - {name: MPSD_DEVICE_LIST_STRATEGY, value: envvar}\n",
    "            - {name: MPSD_DEVICE_LIST_STRATEGY, value: {{ .Values.agent.deviceListStrategy }}}\n"
    + conditional(TAINTED, indented(_block("components/startup-taint/agent.yaml", "env:"), 12)),
)
_APPARMOR = "            appArmorProfile: {type: Unconfined}\n"
_AGENT = (
    _affinity("base/agent/daemonset.yaml"),
    _tolerations("on every node with a control daemon"),
    _arguments("[agent]", "agent", "agent"),
    _STRATEGY,
    (_APPARMOR, conditional(MODERN, _APPARMOR)),
    _more(
        "  template:\n    metadata:",
        OLD,
        "      annotations:\n        container.apparmor.security.beta.kubernetes.io/agent: unconfined",
    ),
    *_claims(),
)
_TAINT_RIGHT = """\
  # Of its own Node the taint mpsd.io/not-ready alone: taints.yaml.
  - apiGroups: [""]
    resources: [nodes]
    verbs: [patch]
"""
_LAST_RIGHT = "    resources: [subjectaccessreviews]\n    verbs: [create]\n"
_AGENT_RIGHTS = (
    (
        _LAST_RIGHT,
        _LAST_RIGHT + conditional(TAINTED, _TAINT_RIGHT) + conditional(CLAIMS, _claim_rights("rights.yaml")),
    ),
)
_KUBE_SCHEDULER = '{{ .Values.scheduler.kubeScheduler.repository }}:{{ include "mpsd.kubeSchedulerTag" . }}'
_SCHEDULER = (
    _where("scheduler"),
    ("  replicas: 2 #", "  replicas: {{ .Values.scheduler.replicas }} #"),
    ("image: registry.k8s.io/kube-scheduler\n", f"image: {_KUBE_SCHEDULER}\n"),
)


# -- the webhook --


def _webhook() -> tuple[Edit, ...]:
    """As components/cert-manager, with a Secret of any name, and components/modern have it."""
    file = "components/cert-manager/deployment.yaml"
    variables, mounts, volumes = (_block(file, f"{name}:") for name in ("env", "volumeMounts", "volumes"))
    volumes = volumes.replace("mpsd-webhook-tls", '{{ .Values.webhook.tls.secretName | default "mpsd-webhook-tls" }}')
    (hashed,) = {
        str(patch["value"]) for patch in yaml.safe_load((MANIFESTS / "components/modern/spread.yaml").read_text())
    }
    return (
        _where("webhook"),
        ("  replicas: 2\n", "  replicas: {{ .Values.webhook.replicas }}\n"),
        _more(
            "          whenUnsatisfiable: ScheduleAnyway # two on one node are better than one",
            MODERN,
            f"          matchLabelKeys: {hashed}",
        ),
        _more("          whenUnsatisfiable: ScheduleAnyway", MODERN, f"          matchLabelKeys: {hashed}"),
        _more("          env:", GIVEN, indented(variables, 12)),
        _more("          volumeMounts:", GIVEN, indented(mounts, 12)),
        _more("      volumes:", GIVEN, indented(volumes, 8)),
    )


_ALL_BUT_EXEMPT = """\
    namespaceSelector:
      matchExpressions:
        - {key: mpsd.io/exempt, operator: NotIn, values: ["true"]}
"""


def _configurations() -> tuple[Edit, ...]:
    """As components/cert-manager, fail-closed and modern have them, and with the authority of a Secret."""
    conditions = _block("components/modern/match-conditions.yaml", "value:")
    annotations = "  annotations:\n    cert-manager.io/inject-ca-from: mpsd-system/mpsd-webhook"
    bundle = "      caBundle: {{ .Values.webhook.tls.caBundle | b64enc }}"
    found: list[Edit] = [
        _more("  name: mpsd-webhook", CERT_MANAGER, annotations),
        _more("    clientConfig:", SECRET, bundle),
    ]
    for kind, verb in {"Validating": "validate", "Mutating": "mutate"}.items():
        path = f"path: /{verb}, port: 443}}\n"
        policy = f'    failurePolicy: {{{{ include "mpsd.failurePolicy" (list . "{kind}WebhookConfiguration") }}}}\n'
        found.append((f"{path}    failurePolicy: Ignore\n", f"{path}{policy}"))
    # The mutating one sees every pod, and may make templates of claims.
    named = f"reinvocationPolicy: IfNeeded\n{_ALL_BUT_EXEMPT}    sideEffects: "
    found.append((f"{named}None", f"{named}{{{{ if {CLAIMS} }}}}NoneOnDryRun{{{{ else }}}}None{{{{ end }}}}"))
    first = '"ValidatingWebhookConfiguration") }}'
    return (*found, _more(first, MODERN, "    matchConditions:\n" + indented(conditions, 6)))


_PROBE = """\
  # In a dry run, an object that the webhook refuses: so it sees whether the API server calls it. No controller acts on
  # PodTemplates.
  - apiGroups: [""]
    resources: [podtemplates]
    verbs: [create]
"""
_RIGHTS = (
    ("    verbs: [get, patch]\n", f"    verbs: [get{{{{ if {OWN} }}}}, patch{{{{ end }}}}]\n"),
    (_PROBE, conditional(OWN, _PROBE) + conditional(CLAIMS, _claim_rights("webhook-rights.yaml"))),
)


# -- the rest --

_NAMES = "    app.kubernetes.io/part-of: mpsd\n"
_MONITORED = (
    _NAMES,
    f"{_NAMES}    {{{{- with .Values.prometheus.labels }}}}\n    {{{{- toYaml . | nindent 4 }}}}\n    {{{{- end }}}}\n",
)
_KEPT = ("  name: mpsnodes.mpsd.io\n", "  name: mpsnodes.mpsd.io\n  annotations:\n    helm.sh/resource-policy: keep\n")
_EXEMPT = (
    "\"['kube-system', 'mpsd-system', 'gpu-operator', 'nvidia-gpu-operator']\"\n",
    "{{ printf \"['%s']\" (join \"', '\" .Values.policy.admission.exempt_namespaces) | toJson }}\n",
)

TEMPLATES: Mapping[str, Made] = {
    "crd/mpsnode.yaml": Made("base/crd/mpsnode.yaml", (_KEPT,)),
    "readers.yaml": Made("base/readers.yaml"),
    "control/service-account.yaml": Made("base/control/service-account.yaml"),
    "control/daemonset.yaml": Made("base/control/daemonset.yaml", _CONTROL),
    "agent/service-account.yaml": Made("base/agent/service-account.yaml"),
    "agent/rights.yaml": Made("base/agent/rights.yaml", _AGENT_RIGHTS),
    "agent/taints.yaml": Made("components/startup-taint/agent-taints.yaml", when=TAINTED),
    "agent/writes.yaml": Made("components/modern/agent-writes.yaml", when=MODERN),
    "agent/slices.yaml": Made("components/dra/agent-slices.yaml", when=CLAIMS),
    "agent/daemonset.yaml": Made("base/agent/daemonset.yaml", _AGENT),
    "claims/policy.yaml": Made("components/dra/claims.yaml", when=CLAIMS),
    "claims/device-class.yaml": Made("components/dra/device-class.yaml", when=CLAIMS),
    "webhook/service-account.yaml": Made("base/webhook/service-account.yaml", when=WEBHOOK),
    "webhook/service.yaml": Made("base/webhook/service.yaml", when=WEBHOOK),
    "webhook/rights.yaml": Made(
        "base/webhook/rights.yaml",
        _RIGHTS,
        when=WEBHOOK,
        documents={"Role mpsd-webhook": OWN, "RoleBinding mpsd-webhook": OWN},
    ),
    "webhook/deployment.yaml": Made("base/webhook/deployment.yaml", _webhook(), when=WEBHOOK),
    "webhook/configurations.yaml": Made("base/webhook/configurations.yaml", _configurations(), when=WEBHOOK),
    "webhook/templates.yaml": Made("components/dra/webhook-templates.yaml", when=f"and {WEBHOOK} {CLAIMS}"),
    "webhook/disruption-budget.yaml": Made("components/modern/disruption-budget.yaml", when=f"and {WEBHOOK} {MODERN}"),
    "webhook/certificates.yaml": Made(
        "components/cert-manager/certificates.yaml", when=f"and {WEBHOOK} {CERT_MANAGER}"
    ),
    "exemptions.yaml": Made(
        "components/exemptions/policy.yaml",
        (_EXEMPT,),
        when=f"or .Values.exemptions (and .Values.hostileTenants {MODERN})",
    ),
    "scheduler/service-account.yaml": Made("components/scheduler-account/service-account.yaml", when=SCHEDULER),
    "scheduler/rights.yaml": Made("components/scheduler-account/rights.yaml", when=SCHEDULER),
    "scheduler/second-rights.yaml": Made("components/scheduler/rights.yaml", when=SECOND),
    "scheduler/deployment.yaml": Made("components/scheduler/deployment.yaml", _SCHEDULER, when=SECOND),
    "scheduler/extender.yaml": Made("components/scheduler-extender/daemonset.yaml", when=EXTENDER),
    "prometheus/account.yaml": Made("components/prometheus/account.yaml", when=".Values.prometheus.serviceMonitor"),
    "prometheus/pod-monitors.yaml": Made(
        "components/prometheus/pod-monitors.yaml",
        (_MONITORED,),
        when=".Values.prometheus.serviceMonitor",
        documents={"PodMonitor mpsd-scheduler": SCHEDULER, "PodMonitor mpsd-webhook": WEBHOOK},
    ),
    "prometheus/rules.yaml": Made("components/prometheus/rules.yaml", (_MONITORED,), when=".Values.prometheus.rules"),
    "network-policies.yaml": Made(
        "components/network-policy/policies.yaml",
        when=".Values.networkPolicy.enabled",
        documents={"NetworkPolicy mpsd-scheduler": SCHEDULER, "NetworkPolicy mpsd-webhook": WEBHOOK},
    ),
}
