{{/* The image of every process. */}}
{{- define "mpsd.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* What every pod says of its images; of a container: of mpsd's own. */}}
{{- define "mpsd.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
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

{{/* The policy in force: the values, with the names of resources.domain and, for hostileTenants, its stricter fields
     wherever the value is the shipped one. */}}
{{- define "mpsd.policy" -}}
{{- $policy := deepCopy .Values.policy -}}
{{- range $field := include "mpsd.nullFields" . | fromJsonArray -}}
  {{- $parent := $policy -}}
  {{- range initial $field }}{{ $parent = index $parent . }}{{ end -}}
  {{- if not (hasKey $parent (last $field)) }}{{ $_ := set $parent (last $field) nil }}{{ end -}}
{{- end -}}
{{- range $policy.compute.cards -}}
  {{- if not (hasKey . "max_inst") }}{{ $_ := set . "max_inst" nil }}{{ end -}}
{{- end -}}
{{- if .Values.hostileTenants -}}
  {{- range $change := include "mpsd.hostileChanges" . | fromJsonArray -}}
    {{- $parent := $policy -}}
    {{- range initial $change.field }}{{ $parent = index $parent . }}{{ end -}}
    {{- if eq (index $parent (last $change.field) | toJson) (toJson $change.shipped) -}}
      {{- $_ := set $parent (last $change.field) $change.hostile -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $policy | replace "aliyun.com/" (printf "%s/" .Values.resources.domain) -}}
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

{{- define "mpsd.kubeSchedulerTag" -}}
{{- .Values.scheduler.kubeScheduler.tag | default (regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version) -}}
{{- end }}
