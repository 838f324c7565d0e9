{{/* The chart's name, or what replaces it. */}}
{{- define "warmpath.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The first part of every name: short enough that a pool's name and an ordinal fit behind it. */}}
{{- define "warmpath.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "warmpath.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of everything. Takes (dict "root" $ "component" NAME). */}}
{{- define "warmpath.labels" -}}
{{ include "warmpath.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels that select pods; a pool's workers have one more. */}}
{{- define "warmpath.selectorLabels" -}}
app.kubernetes.io/name: {{ include "warmpath.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
warmpath/pool: {{ .name | quote }}
{{- end }}
{{- end -}}

{{/* The service account of the pods. */}}
{{- define "warmpath.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "warmpath.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The reference of an image. Takes (dict "root" $ "image" IMAGE). */}}
{{- define "warmpath.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.image.registry -}}
{{- $repository = printf "%s/%s" . $repository -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The pools with their defaults, as YAML of {"pools": [...]}; fails where a pool cannot be. */}}
{{- define "warmpath.pools" -}}
{{- $pools := list -}}
{{- $names := list -}}
{{- with .Values.router -}}
{{- if not (or $.Values.workers .extraWorkers .extraArgs .extraEnv .extraEnvFrom) -}}
{{- fail "workers: there are no pools, and router.extraWorkers is empty" -}}
{{- end -}}
{{- end -}}
{{- range $given := .Values.workers -}}
{{- if has $given.name $names -}}
{{- fail (printf "workers: two pools are called %q" $given.name) -}}
{{- end -}}
{{- $names = append $names $given.name -}}
{{- $pool := mustMergeOverwrite (deepCopy $.Values.workerDefaults) (deepCopy $given) -}}
{{- $model := $pool.model -}}
{{- $isHost := not (empty $pool.host.catalogue) -}}
{{- if $isHost -}}
{{- include "warmpath.checkHost" (dict "root" $ "pool" $pool) -}}
{{- end -}}
{{- $sources := compact (list $model.huggingFace.repo $model.url.url $model.pvc.claimName $model.oci.reference) -}}
{{- if or (gt (len $sources) 1) (and (empty $sources) (not $isHost)) -}}
{{- fail (printf "workers: pool %q has %d sources of its model; set one of model.huggingFace.repo, model.url.url, model.pvc.claimName, model.oci.reference" $given.name (len $sources)) -}}
{{- end -}}
{{- $file := "" -}}
{{- if $model.huggingFace.repo -}}
{{- $file = required (printf "workers: pool %q needs model.huggingFace.file" $given.name) $model.huggingFace.file -}}
{{- else if $model.url.url -}}
{{- $file = (urlParse $model.url.url).path -}}
{{- else if $isHost -}}
{{- else if $model.pvc.claimName -}}
{{- $file = required (printf "workers: pool %q needs model.pvc.path" $given.name) $model.pvc.path -}}
{{- else -}}
{{- $file = required (printf "workers: pool %q needs model.oci.path" $given.name) $model.oci.path -}}
{{- end -}}
{{- $downloads := or $model.huggingFace.repo $model.url.url | empty | not -}}
{{- $path := ternary (printf "/data/models/%s" (base $file)) (printf "/models/%s" (trimPrefix "/" $file)) $downloads -}}
{{- $autoscaled := ne $pool.autoscaling.kind "none" -}}
{{- $ownTriggers := and (eq $pool.autoscaling.kind "keda") $pool.autoscaling.keda.triggers -}}
{{- if and $autoscaled (eq (int $pool.autoscaling.minReplicas) 0) (not $ownTriggers) -}}
{{- fail (printf "workers: pool %q cannot start again from autoscaling.minReplicas 0, because the chart's triggers stay at 0 without a worker; set 1, or kind keda with autoscaling.keda.triggers" $given.name) -}}
{{- end -}}
{{- if and $autoscaled (gt (int64 $pool.autoscaling.minReplicas) (int64 $pool.autoscaling.maxReplicas)) -}}
{{- fail (printf "workers: pool %q has an autoscaling.minReplicas above its maxReplicas" $given.name) -}}
{{- end -}}
{{- $computed := dict "fullname" (printf "%s-%s" (include "warmpath.fullname" $) $given.name) "downloads" $downloads "modelPath" $path "autoscaled" $autoscaled "isHost" $isHost -}}
{{- $pools = append $pools (merge $computed $pool) -}}
{{- end -}}
{{- toYaml (dict "pools" $pools) -}}
{{- end -}}

{{/* The Secret with the routers' certificate; fails where there is none. */}}
{{- define "warmpath.tlsSecret" -}}
{{- with .Values.router.tls -}}
{{- if .certManager.enabled -}}
{{- printf "%s-tls" (include "warmpath.fullname" $) -}}
{{- else -}}
{{- required "router.tls: set existingSecret, or certManager.enabled" .existingSecret -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the workers' certificate; fails where there is none. */}}
{{- define "warmpath.workerTLSSecret" -}}
{{- with .Values.internalTLS -}}
{{- if .certManager.enabled -}}
{{- printf "%s-worker-tls" (include "warmpath.fullname" $) -}}
{{- else -}}
{{- required "internalTLS: set existingSecret, or certManager.enabled" .existingSecret -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the certificate that routers show workers; fails where there is none. */}}
{{- define "warmpath.routerClientSecret" -}}
{{- with .Values.internalTLS -}}
{{- if .certManager.enabled -}}
{{- printf "%s-router-client-tls" (include "warmpath.fullname" $) -}}
{{- else -}}
{{- required "internalTLS.mutual: set routerSecret, or certManager.enabled" .routerSecret -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The port that workers serve on. */}}
{{- define "warmpath.workerPort" -}}8081{{- end -}}

{{/* The port at which workers answer probes and scrapers. */}}
{{- define "warmpath.workerAdminPort" -}}9090{{- end -}}

{{/* `replicas` of what an autoscaler scales: as many as there are now, because an object that loses the field gets 1. Empty
where there is no such object yet, or no cluster to ask. Takes (dict "root" $ "kind" KIND "name" NAME). */}}
{{- define "warmpath.liveReplicas" -}}
{{- $live := lookup "apps/v1" .kind .root.Release.Namespace .name | default dict -}}
{{- $spec := $live.spec | default dict -}}
{{- if hasKey $spec "replicas" -}}
replicas: {{ int64 $spec.replicas }}
{{- end -}}
{{- end -}}

{{/* Fails where extraArgs set what the pod's grace period is computed from. Takes (dict "args" LIST "value" NAME). */}}
{{- define "warmpath.checkExtraArgs" -}}
{{- range .args -}}
{{- if or (eq . "--drain-timeout") (hasPrefix "--drain-timeout=" .) -}}
{{- fail (printf "%s: set drainTimeoutSeconds instead of --drain-timeout in extraArgs, so that Kubernetes waits as long" $.value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Spread constraints, each with a selector. Takes (dict "constraints" LIST "selector" YAML). */}}
{{- define "warmpath.spread" -}}
{{- $selector := fromYaml .selector -}}
{{- range .constraints }}
{{- $constraint := deepCopy . }}
{{- if not .labelSelector }}
{{- $_ := set $constraint "labelSelector" (dict "matchLabels" $selector) }}
{{- end }}
- {{ toYaml $constraint | nindent 2 | trim }}
{{- end }}
{{- end -}}

{{/* Fields that the pods of routers and workers have in common. Takes (dict "root" $ "part" VALUES "selector" YAML "apiToken" BOOL). */}}
{{- define "warmpath.podSpec" -}}
serviceAccountName: {{ include "warmpath.serviceAccountName" .root }}
automountServiceAccountToken: {{ .apiToken | default false }}
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml .part.podSecurityContext | nindent 2 }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- include "warmpath.spread" (dict "constraints" . "selector" $.selector) | trim | nindent 2 }}
{{- end }}
{{- end -}}
