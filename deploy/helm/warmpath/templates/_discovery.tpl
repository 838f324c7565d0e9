{{/* The flags by which a router finds the workers: each by the name that its StatefulSet keeps for it. */}}
{{- define "warmpath.discoveryArgs" -}}
{{- range (include "warmpath.pools" $ | fromYaml).pools }}
{{- $pool := . }}
{{- range until (int (ternary .autoscaling.maxReplicas .replicas .autoscaled)) }}
- --worker=http://{{ $pool.fullname }}-{{ . }}.{{ $pool.fullname }}:{{ include "warmpath.workerPort" $ }}
{{- end }}
{{- end }}
{{- end -}}
