{{- /* Parts of admission policies. Lists and names are those of the policy in force, which is the argument. */ -}}

{{- /* A list as CEL writes it. */ -}}
{{- define "mpsd.celList" }}['{{ join "', '" . }}']{{ end -}}

{{- define "mpsd.resourceNames" -}}
{{- with .resources }}{{ include "mpsd.celList" (list .memory .percent .count) }}{{ end -}}
{{- end }}

{{- /* Of every binding: (list NAME ACTION COMPONENT), without COMPONENT for what belongs to no pod of mpsd. */ -}}
{{- define "mpsd.policyBinding" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ index . 0 }}
  labels: { {{- with slice . 2 }}app.kubernetes.io/name: {{ first . }}, {{ end }}app.kubernetes.io/part-of: mpsd}
spec: {policyName: {{ index . 0 }}, validationActions: [{{ index . 1 }}]}
{{- end }}

{{- /* Of a policy on what mpsd-agent writes: its node is in its token, which is bound to a pod of the DaemonSet. */ -}}
{{- define "mpsd.byTheAgent" -}}
matchConditions:
  - name: by-the-agent
    expression: request.userInfo.username == 'system:serviceaccount:mpsd-system:mpsd-agent'
variables:
  - name: node
    expression: >-
      has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra
      ? request.userInfo.extra['authentication.kubernetes.io/node-name'][0] : ''
{{- end }}

{{- /* kube-system and the like need no label of mpsd here. */ -}}
{{- define "mpsd.judgedNamespaces" }}
      matchExpressions:
        - {key: mpsd.io/exempt, operator: NotIn, values: ["true"]}
        - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ toJson .admission.exempt_namespaces }}}
{{- end }}

{{- /* What has containers, but for pods: rules of matchConstraints. */ -}}
{{- define "mpsd.workloads" }}
      - apiGroups: [apps]
        apiVersions: [v1]
        resources: [deployments, statefulsets, daemonsets, replicasets]
        operations: [CREATE, UPDATE]
        scope: Namespaced
      - {apiGroups: [batch], apiVersions: [v1], resources: [jobs, cronjobs], operations: [CREATE, UPDATE], scope: Namespaced}
{{- end }}

{{- define "mpsd.ephemeralContainers" }}
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods/ephemeralcontainers]
        operations: [UPDATE]
        scope: Namespaced
{{- end }}

{{- /* Which objects a policy of pods judges, and the first of its variables. */ -}}
{{- define "mpsd.judgedPods" }}
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {{- include "mpsd.judgedNamespaces" . }}
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE], scope: Namespaced}
      {{- include "mpsd.ephemeralContainers" . }}
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [replicationcontrollers, podtemplates]
        operations: [CREATE, UPDATE]
        scope: Namespaced
      {{- include "mpsd.workloads" . }}
  matchConditions:
    - name: new-or-changed # changes to labels and finalizers of old objects always pass
      expression: >-
        oldObject == null || !has(object.metadata.deletionTimestamp)
        && (object.kind == 'PodTemplate' ? object.template != oldObject.template : object.spec != oldObject.spec)
  variables:
    - name: pod
      expression: >-
        object.kind == 'PodTemplate' ? object.template.spec
        : object.kind == 'CronJob' ? object.spec.jobTemplate.spec.template.spec
        : has(object.spec.template) ? object.spec.template.spec
        : object.spec
    - name: containers
      expression: >-
        variables.pod.containers
        + (has(variables.pod.initContainers) ? variables.pod.initContainers : [])
        + (has(variables.pod.ephemeralContainers) ? variables.pod.ephemeralContainers : [])
    - name: asking # containers that request a share of a GPU
      expression: >-
        variables.containers.filter(c, has(c.resources)
        && {{ include "mpsd.resourceNames" . }}.exists(name,
        has(c.resources.limits) && name in c.resources.limits
        || has(c.resources.requests) && name in c.resources.requests))
{{- end }}

{{- define "mpsd.hostPaths" }}
    - name: hostPaths # such as run/mpsd/ for /var/run//mpsd
      expression: >-
        !has(variables.pod.volumes) ? [] : variables.pod.volumes.filter(v, has(v.hostPath)).map(v,
        v.hostPath.path.split('/').filter(s, s != '' && s != '.').join('/') + '/').map(p,
        p == '/' ? '' : p.startsWith('var/run/') ? p.substring(4) : p)
{{- end }}

{{- define "mpsd.leadingHostPaths" }}
    {{- include "mpsd.hostPaths" . }}
    {{- $blocked := list }}
    {{- range .admission.blocked_host_paths }}
    {{- $path := trimPrefix "/" . }}
    {{- $blocked = append $blocked (ternary (trimSuffix "*" $path) (printf "%s/" $path) (hasSuffix "*" $path)) }}
    {{- end }}
    - name: blockedHostPaths # as hostPaths are, so that thousands of comparisons cost little
      expression: {{ include "mpsd.celList" $blocked | toJson }}
    - name: leading # those that contain a blocked path, are one, or lie below one
      expression: >-
        variables.hostPaths.filter(p, !p.startsWith('run/mpsd/') && ('..' in p.split('/')
        || variables.blockedHostPaths.exists(b, b.startsWith(p) || p.startsWith(b))))
{{- end }}

{{- define "mpsd.blockedEnvironment" }}
    - name: blockedEnvironment
      expression: {{ include "mpsd.celList" .admission.blocked_environment | toJson }}
{{- end }}

{{- /* A regular expression of names, of which one that ends in * stands for any ending. */ -}}
{{- define "mpsd.namesPattern" -}}
{{- $patterns := list -}}
{{- range . -}}
{{- $patterns = append $patterns (ternary (trimSuffix "*" .) (printf "%s$" .) (hasSuffix "*" .)) -}}
{{- end -}}
^({{ join "|" $patterns }})
{{- end }}

{{- /* The containers of a list that request nothing of a GPU, with NVIDIA_VISIBLE_DEVICES=void: (list $policy FIELD WHICH),
     WHICH a list's filter up to where more conditions follow. */ -}}
{{- define "mpsd.voidContainers" -}}
{{- $names := include "mpsd.resourceNames" (first .) -}}
{{- $kept := include "mpsd.namesPattern" (first .).admission.visible_devices_kept_for -}}
{{- $type := printf "Object.spec.%s" (index . 1) -}}
{{ index . 1 }}: {{ index . 2 }}
          !(has(c.env) && c.env.exists(e, e.name == 'NVIDIA_VISIBLE_DEVICES'))
          && !(has(c.resources) && (has(c.resources.limits) && c.resources.limits.exists(name, name in {{ $names }}
          || name.matches('{{ $kept }}') && string(c.resources.limits[name]).matches('[1-9]'))
          || has(c.resources.requests) && c.resources.requests.exists(name, name in {{ $names }}
          || name.matches('{{ $kept }}')
          && string(c.resources.requests[name]).matches('[1-9]'))))).map(c,
          {{ $type }}{
          name: c.name,
          env: [{{ $type }}.env{name: "NVIDIA_VISIBLE_DEVICES", value: "void"}]})
{{- end }}
