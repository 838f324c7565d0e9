{{/* The port at which a host of models answers routers, probes and scrapers. */}}
{{- define "warmpath.hostPort" -}}9190{{- end -}}

{{/* Not empty where a pool has hosts of models, whose workers listen at any port. */}}
{{- define "warmpath.hasHosts" -}}
{{- range (include "warmpath.pools" . | fromYaml).pools }}{{- if .isHost }}true{{ end }}{{- end -}}
{{- end -}}

{{/* Fails where a pool of hosts cannot be. Takes (dict "root" $ "pool" POOL). */}}
{{- define "warmpath.checkHost" -}}
{{- $name := printf "workers: pool %q has a host.catalogue" .pool.name -}}
{{- if or .pool.model.huggingFace.repo .pool.model.url.url -}}
{{- fail (printf "%s: name its models there (`model` below /models, or `hf-repo`); only model.pvc and model.oci hold their files" $name) -}}
{{- end -}}
{{- if not .root.Values.fleetToken.existingSecret -}}
{{- fail (printf "%s, which needs fleetToken.existingSecret" $name) -}}
{{- end -}}
{{- if .root.Values.internalTLS.enabled -}}
{{- fail (printf "%s: hosts have no TLS (internalTLS)" $name) -}}
{{- end -}}
{{- if ne .pool.autoscaling.kind "none" -}}
{{- fail (printf "%s: hosts are not scaled (autoscaling.kind)" $name) -}}
{{- end -}}
{{- end -}}

{{/* The arguments of a host of models. Takes (dict "root" $ "pool" POOL). */}}
{{- define "warmpath.hostArgs" -}}
- host
- --host-listen=$(POD_IP):{{ include "warmpath.hostPort" .root }}
- --host-token-file={{ printf "/secrets/fleet/%s" .root.Values.fleetToken.key }}
- --models-preset=/catalogue/models.ini
- --models-cache=/data/kv
- --models-cache-size={{ max 1 (int64 .pool.cache.diskMiB) }}
{{- range .pool.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}
