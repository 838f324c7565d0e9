{{/* Not empty where routers watch EndpointSlices, for which they need a token of the API server. */}}
{{- define "warmpath.watches" -}}
{{- if and (eq .Values.router.discovery.kind "kubernetes") .Values.workers }}true{{ end -}}
{{- end -}}

{{/* The flags by which a router finds the workers of all pools. */}}
{{- define "warmpath.discoveryArgs" -}}
{{- $kind := .Values.router.discovery.kind }}
{{- $port := include "warmpath.workerPort" . }}
{{- $tls := ternary "https://" "" .Values.internalTLS.enabled }}
{{- range (include "warmpath.pools" . | fromYaml).pools }}
{{- $pool := . }}
{{- if eq $kind "kubernetes" }}
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
