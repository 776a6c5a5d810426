{{/* Weights: their place, and their download before engines start. */}}

{{/* The distinct models of the Hub that the fleet serves or drafts with: lines of "id revision".
Paths and object stores are omitted, because vLLM reads those itself. */}}
{{- define "antefix.hubModels" -}}
{{- $lines := list -}}
{{- range $name, $pool := .Values.fleet.pools | default dict -}}
{{- $args := dict -}}
{{- range $key, $value := $pool.engine_args | default dict -}}
{{- $_ := set $args (replace "-" "_" $key) $value -}}
{{- end -}}
{{- $draft := get $args "speculative_config" | default dict -}}
{{- $used := list (dict "id" $pool.model "revision" $args.revision) (dict "id" $draft.model "revision" $draft.revision) -}}
{{- range $used -}}
{{- $id := .id | default "" -}}
{{- if and (ne $id "embedded") (regexMatch `^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$` $id) -}}
{{- $lines = append $lines (printf "%s %s" $id (.revision | default "main" | toString)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $lines | uniq | sortAlpha | join "\n" -}}
{{- end -}}

{{/* "true" if models of the Hub are downloaded before engines start. */}}
{{- define "antefix.modelsAreDownloaded" -}}
{{- if .Values.models.download.enabled -}}
{{- if eq .Values.models.storage "none" -}}
{{- fail "models.download.enabled is true, but models.storage is none: set models.storage to pvc or hostPath, or models.download.enabled to false" -}}
{{- end -}}
{{- if include "antefix.hubModels" . -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if one Job downloads for all engines: on a claim that pods of several nodes can mount. If only one
node can, the Job could block the volume for the engines' node, or they for its node. */}}
{{- define "antefix.modelsHaveJob" -}}
{{- $shared := has "ReadWriteMany" .Values.models.pvc.accessModes -}}
{{- if and (eq .Values.models.storage "pvc") $shared (include "antefix.modelsAreDownloaded" .) -}}true{{- end -}}
{{- end -}}

{{- define "antefix.modelClaim" -}}
{{- .Values.models.pvc.existingClaim | default (printf "%s-models" (include "antefix.fullname" .)) -}}
{{- end -}}

{{/* Items for `volumes` of a pod that reads or writes weights. */}}
{{- define "antefix.modelVolumes" -}}
{{- if eq .Values.models.storage "pvc" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ include "antefix.modelClaim" . }}
{{- else if eq .Values.models.storage "hostPath" }}
- name: models
  hostPath:
    path: {{ .Values.models.hostPath.path }}
    # an administrator creates it: the kubelet would create it as root
    type: Directory
{{- end }}
{{- if include "antefix.modelsAreDownloaded" . }}
- name: model-list
  configMap:
    name: {{ include "antefix.fullname" . }}-models
{{- end }}
{{- end -}}

{{/* Items for `volumeMounts`, writable: the Hub's client locks files that it reads. */}}
{{- define "antefix.modelMounts" -}}
{{- if ne .Values.models.storage "none" -}}
- name: models
  mountPath: {{ .Values.models.mountPath }}
{{- end -}}
{{- end -}}

{{/* Items for `env`. */}}
{{- define "antefix.modelEnv" -}}
{{- if ne .Values.models.storage "none" }}
- name: HF_HOME
  value: {{ .Values.models.mountPath }}/hub
{{- end }}
{{- with .Values.models.hub.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: token}
{{- end }}
{{- end -}}

{{/* Items for `env` of an engine on GPUs. The GPU build compiles for minutes. The CPU build compiles for the cores of
its node, and the code may not run on another. */}}
{{- define "antefix.compileCacheEnv" -}}
{{- if and .gpus (ne .root.Values.models.storage "none") }}
- name: ANTEFIX_COMPILE_CACHE
  value: {{ .root.Values.models.mountPath }}/compiled
{{- end }}
{{- end -}}

{{/* Items for `initContainers` of an engine's pod; takes what antefix.rayPod takes. They wait for the Job that
downloads, or download themselves if there is no Job. The list of models is a ConfigMap, so that another model
does not change pods. */}}
{{- define "antefix.modelInitContainers" -}}
{{- if include "antefix.modelsAreDownloaded" .root }}
{{- $waits := include "antefix.modelsHaveJob" .root }}
- name: models
  image: {{ .image }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  terminationMessagePolicy: FallbackToLogsOnError
  command: [bash, -c]
  args:
    - |
      {{- if $waits }}
      {{- include "antefix.awaitModels" .root | nindent 6 }}
      {{- else }}
      {{- include "antefix.downloadModels" (dict "once" true) | nindent 6 }}
      {{- end }}
  env: {{- include "antefix.modelEnv" .root | nindent 4 }}
  volumeMounts:
    {{- include "antefix.modelListMount" . | nindent 4 }}
    {{- include "antefix.modelMounts" .root | nindent 4 }}
  {{- $little := dict "requests" (dict "cpu" "10m" "memory" "32Mi") "limits" (dict "memory" "32Mi") }}
  resources: {{- empty $waits | ternary .root.Values.models.download.resources $little | include "antefix.quantities" | nindent 4 }}
  securityContext: {{- include "antefix.containerSecurityContext" .root | nindent 4 }}
{{- end }}
{{- end -}}

{{- define "antefix.modelListMount" -}}
- name: model-list
  mountPath: /etc/antefix/models
  readOnly: true
{{- end -}}

{{/* A file for each downloaded model, with slashes replaced in its name. It contains the commit that engines load
(deployments/models/hub_snapshots.py), because the Hub's client writes refs before it has the files. */}}
{{- define "antefix.modelMarker" -}}
marker() { local name="$1@$2"; echo "$HF_HOME/.antefix/${name//\//--}"; }
{{- end -}}

{{/* A revision that is a commit has no file in refs. */}}
{{- define "antefix.markModel" -}}
mark() {
  local ref="$HF_HOME/hub/models--${1//\//--}/refs/$2"
  if [ -e "$ref" ]; then cat "$ref"; else echo "$2"; fi > "$HF_HOME/.antefix/marking"
  mv "$HF_HOME/.antefix/marking" "$(marker "$1" "$2")"
}
{{- end -}}

{{/* With "once", for pods that share a volume: they download in turns, only missing models, and retry failures.
If such a pod exited, Kubernetes would replace it at once, and its log would be lost. */}}
{{- define "antefix.downloadModels" -}}
set -euo pipefail
{{ include "antefix.modelMarker" . }}
{{ include "antefix.markModel" . }}
unwritable="$HF_HOME cannot be written by user $(id -u): make that user its owner, or set podSecurityContext.runAsUser"
{{- if .once }}
once_more() { echo "$1; retrying in 30 s" >&2; sleep 30; }
until mkdir -p "$HF_HOME/.antefix"; do once_more "$unwritable"; done
exec 9> "$HF_HOME/.antefix/lock"
flock --nonblock 9 || { echo "another pod is downloading to this volume; waiting for it"; flock 9; }
{{- else }}
if ! mkdir -p "$HF_HOME/.antefix"; then
  echo "$unwritable" >&2
  exit 1
fi
{{- end }}
while read -r model revision; do
{{- if .once }}
  if [ -e "$(marker "$model" "$revision")" ]; then continue; fi
{{- end }}
  echo "downloading $model at $revision"
  # original/ holds a second copy of some weights, which vLLM never reads
  {{ if .once }}until {{ end }}hf download "$model" --revision "$revision" --exclude "original/*" < /dev/null
  {{- if .once }}; do
    once_more "the download of $model failed"
  done
  {{- end }}
  mark "$model" "$revision"
done < /etc/antefix/models/list
{{- end -}}

{{- define "antefix.awaitModels" -}}
set -euo pipefail
{{ include "antefix.modelMarker" . }}
while read -r model revision; do
  until [ -e "$(marker "$model" "$revision")" ]; do
    echo "waiting for the download of $model; to see its progress, run: kubectl -n {{ .Release.Namespace }} logs --selector app.kubernetes.io/instance={{ .Release.Name }},antefix/component=model-download"
    sleep 10
  done
done < /etc/antefix/models/list
{{- end -}}
