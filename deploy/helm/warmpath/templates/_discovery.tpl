{{/* The flags by which a router finds the workers of all pools. */}}
{{- define "warmpath.discoveryArgs" -}}
{{- $kind := .Values.router.discovery.kind }}
{{- $port := include "warmpath.workerPort" . }}
{{- range (include "warmpath.pools" . | fromYaml).pools }}
{{- $pool := . }}
{{- if eq $kind "kubernetes" }}
- --kubernetes-service={{ $.Release.Namespace }}/{{ .fullname }}:{{ $port }}
{{- else if eq $kind "dns" }}
- --worker-dns={{ .fullname }}:{{ $port }}
{{- else }}
{{- range until (int (ternary .autoscaling.maxReplicas .replicas .autoscaled)) }}
- --worker=http://{{ $pool.fullname }}-{{ . }}.{{ $pool.fullname }}:{{ $port }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
