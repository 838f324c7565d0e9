{{/* The container that downloads a pool's model. Takes (dict "root" $ "pool" POOL). */}}
{{- define "warmpath.download" -}}
{{- $pool := .pool -}}
{{- $hub := $pool.model.huggingFace -}}
- name: download
  image: {{ $pool.download.image | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [sh, /download/download-model.sh]
  env:
    - name: MODEL_PATH
      value: {{ $pool.modelPath | quote }}
    - name: MODEL_SHA256
      value: {{ $pool.model.sha256 | quote }}
    {{- if $hub.repo }}
    - name: MODEL_URL
      value: {{ printf "%s/%s/resolve/%s/%s" (trimSuffix "/" $hub.endpoint) $hub.repo $hub.revision $hub.file | quote }}
    - name: CHECKSUM_FROM_HUB
      value: "yes"
    {{- if $hub.tokenSecret.name }}
    - name: HUB_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ $hub.tokenSecret.name | quote }}
          key: {{ $hub.tokenSecret.key | quote }}
    {{- end }}
    {{- else }}
    - name: MODEL_URL
      value: {{ $pool.model.url.url | quote }}
    {{- with $pool.model.url.headersSecret }}
    {{- if .name }}
    - name: HTTP_HEADERS
      valueFrom:
        secretKeyRef:
          name: {{ .name | quote }}
          key: {{ .key | quote }}
    {{- end }}
    {{- end }}
    {{- end }}
  resources:
    {{- toYaml $pool.download.resources | nindent 4 }}
  securityContext:
    {{- toYaml $pool.securityContext | nindent 4 }}
  volumeMounts:
    - name: data
      mountPath: /data
    - name: download
      mountPath: /download
      readOnly: true
    - name: tmp
      mountPath: /tmp
{{- end -}}
