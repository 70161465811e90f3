{{- /* Made of limits/policy.yaml by `python -m tests.manifests.chart`; change it there. Helm drops what is null. */ -}}
{{- define "mpsd.nullFields" }}[["admission", "allowed_host_paths"], ["compute", "max_inst"]]{{ end -}}
{{- define "mpsd.hostileChanges" -}}
[{"field": ["admission", "host_ipc"], "shipped": "require", "hostile": "off"},
 {"field": ["admission", "rules", "host-ipc-unneeded"], "shipped": "warn", "hostile": "enforce"},
 {"field": ["admission", "rules", "environment-secret"], "shipped": "warn", "hostile": "enforce"},
 {"field": ["admission", "rules", "environment-unseen"], "shipped": "warn", "hostile": "enforce"},
 {"field": ["admission", "rules", "host-pid"], "shipped": "warn", "hostile": "enforce"},
 {"field": ["admission", "rules", "host-root"], "shipped": "warn", "hostile": "enforce"},
 {"field": ["admission", "rules", "unasked-privileged"], "shipped": "warn", "hostile": "enforce"},
 {"field": ["admission", "rules", "unasked-host-path"], "shipped": "warn", "hostile": "enforce"},
 {"field": ["admission", "allowed_host_paths"], "shipped": null, "hostile": ["/etc/localtime"]}]
{{- end -}}
