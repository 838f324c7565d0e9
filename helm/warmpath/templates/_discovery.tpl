{{/* Not empty where routers watch EndpointSlices, for which they need a token of the API server. */}}
{{- define "warmpath.watches" -}}
{{- if eq .Values.router.discovery.kind "kubernetes" -}}
{{- range (include "warmpath.pools" . | fromYaml).pools }}{{- if not .isHost }}true{{ end }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The flags by which a router finds the workers of all pools. Hosts have names of their own; their workers are found through them. */}}
{{- define "warmpath.discoveryArgs" -}}
{{- $kind := .Values.router.discovery.kind }}
{{- $port := include "warmpath.workerPort" . }}
{{- $tls := ternary "https://" "" .Values.internalTLS.enabled }}
{{- range (include "warmpath.pools" . | fromYaml).pools }}
{{- $pool := . }}
{{- if .isHost }}
{{- range until (int .replicas) }}
- --host=http://{{ $pool.fullname }}-{{ . }}.{{ $pool.fullname }}:{{ include "warmpath.hostPort" $ }}
{{- end }}
{{- else if eq $kind "kubernetes" }}
- --kubernetes-service={{ $tls }}{{ $.Release.Namespace }}/{{ .fullname }}:{{ $port }}
{{- else if eq $kind "dns" }}
- --worker-dns={{ $tls }}{{ .fullname }}{{ if $tls }}.{{ $.Release.Namespace }}.svc{{ end }}:{{ $port }}
{{- else }}
{{- range until (int (ternary .autoscaling.maxReplicas .replicas .autoscaled)) }}
- --worker={{ default "http://" $tls }}{{ $pool.fullname }}-{{ . }}.{{ $pool.fullname }}{{ if $tls }}.{{ $.Release.Namespace }}.svc{{ end }}:{{ $port }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
