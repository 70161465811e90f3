{{- /* What no schema can say of the values, or only without a remedy: a line for each problem. */ -}}

{{- define "mpsd.valueProblems" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- $policy := include "mpsd.policy" . | fromYaml -}}
{{- /* Empty without a cluster, as in helm template, which then knows no kinds of other projects either. */ -}}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace -}}
{{- $tls := .Values.webhook.tls -}}
{{- if ne .Release.Namespace "mpsd-system" }}
the release's namespace is {{ toJson .Release.Namespace }}: mpsd works in mpsd-system alone; add --namespace mpsd-system
{{- end }}
{{- if not .Values.image.repository }}
image.repository is empty: no image is published; build one (docs/install.md, Install) and set image.repository to its name without the tag
{{- else }}
{{- include "mpsd.imageProblem" (list "image.repository" .Values.image.repository "image.tag, a digest to image.digest") }}
{{- end }}
{{- with .Values.scheduler.kubeScheduler }}
{{- include "mpsd.imageProblem" (list "scheduler.kubeScheduler.repository" .repository "scheduler.kubeScheduler.tag") }}
{{- if and .tag (hasPrefix "registry.k8s.io/" .repository) (not (regexMatch `^v[0-9]+[.][0-9]+[.][0-9]+` .tag)) }}
scheduler.kubeScheduler.tag is {{ toJson .tag }}: {{ .repository }} has no such tag; write a whole version, such as v1.36.2, or nothing for that of the cluster
{{- end }}
{{- end }}
{{- with .Values.resources }}
{{- if not (regexMatch `^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$` .domain) }}
resources.domain is {{ toJson .domain }}: it is no domain's name; write lower-case letters, digits, dots and dashes, such as mpsd.io or gpu.example.com
{{- else if or (hasSuffix "kubernetes.io" .domain) (hasPrefix "requests." .domain) }}
resources.domain is {{ toJson .domain }}: Kubernetes keeps kubernetes.io and requests. for itself; write a domain of yours, or mpsd.io
{{- end }}
{{- end }}
{{- with .Values.gpus }}
{{- $facts := fromYaml . }}
{{- if not (and (eq (toString $facts.version) "v1") (kindIs "slice" $facts.capabilities) (kindIs "slice" $facts.cards)) }}
gpus is no gpus.yaml: version, capabilities or cards is missing; change a copy of limits/gpus.yaml, try it with mpsd check, and add --set-file gpus=FILE
{{- end }}
{{- end }}
{{- if and (eq .Values.agent.deviceListStrategy "cdi-cri") (not (include "mpsd.since" (list . 29))) }}
agent.deviceListStrategy is "cdi-cri": kubelet knows it from Kubernetes 1.29 on, and this is {{ $version }}; write cdi-annotations or envvar
{{- end }}
{{- if .Values.dra.enabled }}
{{- if not (include "mpsd.since" (list . 34)) }}
dra.enabled is true: resource claims need resource.k8s.io/v1 of Kubernetes 1.34 and newer, and this is {{ $version }}; write false
{{- end }}
{{- if eq .Values.agent.deviceListStrategy "cdi-annotations" }}
agent.deviceListStrategy is "cdi-annotations": resource claims have no annotations; with dra.enabled write cdi-cri or envvar
{{- end }}
{{- if and $policy.admission.claims_for_requests .Values.webhook.enabled (not $tls.clientAuthority) }}
policy.admission.claims_for_requests is true: templates of claims are made only for API servers that show a certificate; set webhook.tls.clientAuthority (docs/install-webhook.md)
{{- end }}
{{- else if $policy.admission.claims_for_requests }}
policy.admission.claims_for_requests is true: without dra.enabled no node serves claims; write dra.enabled: true
{{- end }}
{{- if and .Values.exemptions (not (include "mpsd.since" (list . 30))) }}
exemptions is true: it is a ValidatingAdmissionPolicy of Kubernetes 1.30 and newer, and this is {{ $version }}; write false
{{- end }}
{{- with .Values.admissionPolicies }}
{{- if and .enabled (not (include "mpsd.since" (list $ 30))) }}
admissionPolicies.enabled is true: ValidatingAdmissionPolicies are of Kubernetes 1.30 and newer, and this is {{ $version }}; write false
{{- end }}
{{- if and .mutating (not (include "mpsd.since" (list $ 36))) }}
admissionPolicies.mutating is true: MutatingAdmissionPolicies are of Kubernetes 1.36 and newer, and this is {{ $version }}; write false
{{- end }}
{{- if .enabled }}
{{- $shipped := $.Files.Get "files/policy.yaml" | fromYaml }}
{{- range $part, $fields := dict "admission" (list "allowed_host_paths" "host_ipc" "rules") "requests" (list "minimum_thread_percent" "thread_percent_step") }}
{{- range $fields }}
{{- if ne (index $policy $part . | toJson) (index $shipped $part . | toJson) }}
policy.{{ $part }}.{{ . }} is not as shipped, and the expressions of admissionPolicies.enabled do not follow it; remove it, or write false there and leave it to the webhook
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.agent.startupTaint (not (include "mpsd.since" (list . 30))) }}
agent.startupTaint is true: what the agent may change of a Node is bounded by a ValidatingAdmissionPolicy of Kubernetes 1.30 and newer, and this is {{ $version }}; write false
{{- end }}
{{- if and $namespace (or .Values.prometheus.serviceMonitor .Values.prometheus.rules) (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) }}
prometheus.{{ ternary "serviceMonitor" "rules" .Values.prometheus.serviceMonitor }} is true: the cluster does not have the kinds of the Prometheus operator (monitoring.coreos.com/v1); install it first, or write false
{{- end }}
{{- if not .Values.webhook.enabled }}
{{- if .Values.webhook.failClosed }}
webhook.failClosed is true: with webhook.enabled false there is no webhook that could fail; write false, or webhook.enabled: true
{{- end }}
{{- else }}
{{- if eq $tls.source "secret" }}
{{- if not $tls.secretName }}
webhook.tls.secretName is empty: with webhook.tls.source secret, name a Secret of type kubernetes.io/tls in mpsd-system
{{- end }}
{{- $blocks := regexFindAll `-----BEGIN CERTIFICATE-----\s+M[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----` $tls.caBundle -1 }}
{{- if contains "PRIVATE KEY-----" $tls.caBundle }}
webhook.tls.caBundle has a private key, which everybody could read in the webhook's configurations; add --set-file webhook.tls.caBundle=FILE with the authority's certificate alone, and make a new key
{{- else if or (not $blocks) (ne (len $blocks) (len (regexFindAll "-----BEGIN" $tls.caBundle -1))) }}
webhook.tls.caBundle is no PEM certificate: with webhook.tls.source secret, add --set-file webhook.tls.caBundle=FILE with the authority's
{{- end }}
{{- else if or $tls.secretName $tls.caBundle }}
webhook.tls.secretName or webhook.tls.caBundle is set, which webhook.tls.source {{ toJson $tls.source }} does not use; write source: secret, or remove them
{{- else if and $namespace (eq $tls.source "cert-manager") (not (.Capabilities.APIVersions.Has "cert-manager.io/v1")) }}
webhook.tls.source is "cert-manager": the cluster does not have its kinds (cert-manager.io/v1); install cert-manager first, or write own
{{- end }}
{{- if .Values.webhook.failClosed }}
{{- if eq $tls.source "own" }}
webhook.failClosed is true: with webhook.tls.source own the webhook itself sets failurePolicy Fail once it serves; write false
{{- end }}
{{- if and $namespace (ne (dig "metadata" "labels" "mpsd.io/exempt" "" $namespace) "true") }}
webhook.failClosed is true, and the namespace mpsd-system lacks the label without which the webhook's own pods could not start; run kubectl label namespace mpsd-system mpsd.io/exempt=true
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* (list PATH NAME WHERE-A-TAG-BELONGS) */ -}}
{{- define "mpsd.imageProblem" -}}
{{- $path := index . 0 }}
{{- $name := index . 1 }}
{{- if not (regexMatch `^([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$` $name) }}
{{- $bare := regexReplaceAll `(:[^/]*)?(@.*)?$` $name "" }}
{{- if eq $bare $name }}
{{ $path }} is {{ toJson $name }}: it is no image's name; write it in lower-case letters, such as registry.example.com/team/mpsd
{{- else }}
{{ $path }} is {{ toJson $name }}: only the name belongs here; write {{ $bare }}, and move the tag to {{ index . 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "mpsd.podProblems" -}}
{{- $own := include "mpsd.nodeLabel" . }}
{{- with index .Values.nodeSelector $own }}
{{- if ne . "mps" }}
nodeSelector has {{ $own }}: {{ toJson . }}, and every node of mpsd has {{ $own }}: mps; remove it
{{- end }}
{{- end }}
{{- range $path, $labels := dict "nodeSelector" .Values.nodeSelector "webhook.nodeSelector" .Values.webhook.nodeSelector "scheduler.nodeSelector" .Values.scheduler.nodeSelector "prometheus.labels" .Values.prometheus.labels }}
{{- range $name, $value := $labels }}
{{- include "mpsd.labelProblem" (list $path $name $value) }}
{{- end }}
{{- end }}
{{- range $path, $tolerations := dict "tolerations" .Values.tolerations "webhook.tolerations" .Values.webhook.tolerations "scheduler.tolerations" .Values.scheduler.tolerations }}
{{- range $at, $one := $tolerations }}
{{- $where := printf "%s[%d]" $path $at }}
{{- $exists := eq (default "Equal" $one.operator) "Exists" }}
{{- if and $exists $one.value }}
{{ $where }}.value is {{ toJson $one.value }}: operator Exists takes none; remove it, or write operator: Equal
{{- else if not (or $exists $one.key) }}
{{ $where }} has no key; write it, or operator: Exists for every taint
{{- else }}
{{- include "mpsd.labelProblem" (list $where (default "any" $one.key) (default "" $one.value)) }}
{{- end }}
{{- if and (hasKey $one "tolerationSeconds") (ne (default "" $one.effect) "NoExecute") }}
{{ $where }}.tolerationSeconds is {{ toJson $one.tolerationSeconds }}: only effect NoExecute has it; write this effect, or remove tolerationSeconds
{{- end }}
{{- end }}
{{- end }}
{{- range $path, $resources := dict "control.resources" .Values.control.resources "agent.resources" .Values.agent.resources "webhook.resources" .Values.webhook.resources "scheduler.resources" .Values.scheduler.resources "scheduler.kubeScheduler.resources" .Values.scheduler.kubeScheduler.resources }}
{{- range $list := list "requests" "limits" }}
{{- range $name, $value := index $resources $list }}
{{- if not (regexMatch "^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$" (toString $value)) }}
{{ $path }}.{{ $list }}.{{ $name }} is {{ toJson $value }}: it is no quantity; write one such as 100m or 2 of cpu, 256Mi or 1Gi of memory
{{- else if and (eq $list "requests") (hasKey (default dict $resources.limits) $name) }}
{{- $limit := index $resources.limits $name }}
{{- if gt (include "mpsd.number" $value | float64) (include "mpsd.number" $limit | float64) }}
{{ $path }}.requests.{{ $name }} is {{ toJson $value }}, more than {{ $path }}.limits.{{ $name }}, which is {{ toJson $limit }}; raise the limit or lower the request
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* (list PATH NAME VALUE) */ -}}
{{- define "mpsd.labelProblem" -}}
{{- if not (regexMatch `^([a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$` (index . 1)) }}
{{ index . 0 }} has the name {{ index . 1 | toJson }}, which no label can have; write letters, digits, dots and dashes, such as example.com/pool
{{- else if not (regexMatch `^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$` (index . 2)) }}
{{ index . 0 }} has {{ index . 1 }}: {{ index . 2 | toJson }}, which no label can be; write at most 63 letters, digits, dots and dashes
{{- end }}
{{- end }}

{{- /* A quantity of Kubernetes in units. */ -}}
{{- define "mpsd.number" -}}
{{- $number := regexFind "^[0-9.]+([eE][+-]?[0-9]+)?" (toString .) -}}
{{- $units := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- mulf $number (get $units (trimPrefix $number (toString .)) | default 1) -}}
{{- end }}
