{{/* The image of every process. */}}
{{- define "mpsd.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* What each container of mpsd says of it. */}}
{{- define "mpsd.ownImage" -}}
image: {{ include "mpsd.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* What every pod says of its images. */}}
{{- define "mpsd.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Of the DaemonSets: by its label the scheduler, kubectl mps and the doctor know a node that shares its GPUs. */}}
{{- define "mpsd.nodeLabel" -}}
{{- ternary "ack.node.gpu.schedule" "mpsd.io/share" (eq .Values.resources.domain "aliyun.com") -}}
{{- end }}

{{- define "mpsd.nodeSelector" -}}
{{- merge (dict (include "mpsd.nodeLabel" .) "mps") .Values.nodeSelector | toYaml }}
{{- end }}

{{/* The affinity of a DaemonSet: (list . TERMS). One of the terms holds, and with it one of those of the values. */}}
{{- define "mpsd.affinity" -}}
{{- $affinity := deepCopy ((first .).Values.affinity | default dict) -}}
{{- $wanted := (($affinity.nodeAffinity).requiredDuringSchedulingIgnoredDuringExecution).nodeSelectorTerms -}}
{{- $terms := list -}}
{{- range $own := last . -}}
  {{- range $one := $wanted | default (list dict) -}}
    {{- $term := dict "matchExpressions" (concat $own.matchExpressions ($one.matchExpressions | default list)) -}}
    {{- with $one.matchFields }}{{ $_ := set $term "matchFields" . }}{{ end -}}
    {{- $terms = append $terms $term -}}
  {{- end -}}
{{- end -}}
{{- $required := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- merge (dict "nodeAffinity" $required) $affinity | toYaml }}
{{- end }}

{{/* Whether the cluster is of this minor version of Kubernetes 1 or newer: (list . 30). "" means no. */}}
{{- define "mpsd.since" -}}
{{- if semverCompare (printf ">=1.%d-0" (last .)) (first .).Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{/* The policy in force: limits/policy.yaml, with the fields of the values in it and the names of resources.domain. */}}
{{- define "mpsd.policy" -}}
{{- $policy := .Files.Get "files/policy.yaml" -}}
{{- if .Values.policy }}{{ $policy = include "mpsd.merged" (list (fromYaml $policy) .Values.policy) }}{{ end -}}
{{- replace "aliyun.com/" (printf "%s/" .Values.resources.domain) $policy -}}
{{- end }}

{{/* One map with the fields of another in it, lists whole: (list MAP OTHER). Sprig's own leaves out false and 0. */}}
{{- define "mpsd.merged" -}}
{{- $merged := deepCopy (first .) -}}
{{- range $name, $value := last . -}}
  {{- if and (kindIs "map" $value) (kindIs "map" (get $merged $name)) -}}
    {{- $value = include "mpsd.merged" (list (get $merged $name) $value) | fromYaml -}}
  {{- end -}}
  {{- $_ := set $merged $name $value -}}
{{- end -}}
{{- toYaml $merged -}}
{{- end }}

{{/* failurePolicy of a webhook configuration: (list . KIND). mpsd's webhook sets it once API servers reach it, so an
     upgrade leaves it as it finds it. */}}
{{- define "mpsd.failurePolicy" -}}
{{- $top := first . -}}
{{- if ne $top.Values.webhook.tls.source "own" -}}
{{- ternary "Fail" "Ignore" $top.Values.webhook.failClosed -}}
{{- else -}}
{{- $found := lookup "admissionregistration.k8s.io/v1" (last .) "" "mpsd-webhook" -}}
{{- if and $found $found.webhooks }}{{ (first $found.webhooks).failurePolicy }}{{ else }}Ignore{{ end -}}
{{- end -}}
{{- end }}

{{/* The ClusterRole or Role of a name for the account of this name: (list KIND NAME). */}}
{{- define "mpsd.bound" }}
{{- $kind := first . }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ last . }}
  {{- if eq $kind "Role" }}
  namespace: mpsd-system
  {{- end }}
  labels: {app.kubernetes.io/name: {{ last . }}, app.kubernetes.io/part-of: mpsd}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ last . }}}
subjects: [{kind: ServiceAccount, name: {{ last . }}, namespace: mpsd-system}]
{{- end }}

{{/* Of a container that serves them on its port `metrics`: (dict), or (dict "host" "127.0.0.1") on the node's network. */}}
{{- define "mpsd.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics{{ with .host }}, host: {{ . }}{{ end }}}
  periodSeconds: 1
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /readyz, port: metrics{{ with .host }}, host: {{ . }}{{ end }}}
  periodSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: metrics{{ with .host }}, host: {{ . }}{{ end }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{/* Of the pods that need no right on their node. */}}
{{- define "mpsd.unprivileged" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "mpsd.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Replicas on several nodes and zones: (list APP HASHED). HASHED: those of one version of the pod's template. */}}
{{- define "mpsd.spread" -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway # two on one node are better than one
  {{- if index $ 1 }}
  matchLabelKeys: [pod-template-hash]
  {{- end }}
  labelSelector: {matchLabels: {app.kubernetes.io/name: {{ index $ 0 }}}}
{{- end }}
{{- end }}

{{/* Of what the Prometheus operator reads, and of what selects it by a label. */}}
{{- define "mpsd.prometheusLabels" -}}
{{- merge (dict "app.kubernetes.io/name" "mpsd-prometheus" "app.kubernetes.io/part-of" "mpsd") .Values.prometheus.labels | toYaml }}
{{- end }}

{{- define "mpsd.kubeSchedulerTag" -}}
{{- .Values.scheduler.kubeScheduler.tag | default (regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version) -}}
{{- end }}
