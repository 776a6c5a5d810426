{{/* Names, labels, images, security contexts and Secrets that several templates share.
     Each takes the root context, unless its comment names others. */}}

{{/* At most 40 characters: KubeRay appends to it, and rejects a RayService's name of more than 47. A hash at the
     end of a shortened name keeps it unique. */}}
{{- define "antefix.fullname" -}}
{{- $name := printf "%s-antefix" .Release.Name -}}
{{- if contains "antefix" .Release.Name -}}{{- $name = .Release.Name -}}{{- end -}}
{{- $name = .Values.fullnameOverride | default $name -}}
{{- if gt (len $name) 40 -}}
{{- $name = printf "%s-%s" ($name | trunc 33 | trimSuffix "-") (sha256sum $name | trunc 6) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "antefix.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: antefix
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels that select a component's pods: (dict "root" $ "component" "redis"), and "pool" for one pool's. */}}
{{- define "antefix.selector" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
antefix/component: {{ .component }}
{{- with .pool }}
antefix/pool: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of Ray's pods; takes what antefix.selector takes. No app.kubernetes.io/name: KubeRay's head service
     selects by its own value of it. No version: a changed label would start a new cluster. */}}
{{- define "antefix.rayLabels" -}}
{{ include "antefix.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "antefix.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "antefix.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "antefix.cpuImage" -}}
{{- include "antefix.image" (dict "root" . "image" .Values.image.cpu) -}}
{{- end -}}

{{- define "antefix.gpuImage" -}}
{{- include "antefix.image" (dict "root" . "image" .Values.image.gpu) -}}
{{- end -}}

{{/* Takes (dict "root" $ "image" ...). */}}
{{- define "antefix.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.image.registry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The key imagePullSecrets of a pod's spec, or nothing. */}}
{{- define "antefix.imagePullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* These two together meet the restricted pod security standard. */}}
{{- define "antefix.podSecurityContext" -}}
runAsNonRoot: true
{{- with .Values.podSecurity.runAsUser }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
{{- end }}
{{- with .Values.podSecurity.fsGroup }}
fsGroup: {{ int64 . }}
{{- end }}
{{- /* changing the group of every file of the weights at each start would take minutes */}}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "antefix.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Name of the Secret with api-keys and engine-secret. */}}
{{- define "antefix.authSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-auth" (include "antefix.fullname" .)) -}}
{{- end -}}

{{/* Name of the Secret with the password of the chart's Redis. */}}
{{- define "antefix.redisSecret" -}}
{{- .Values.redis.existingSecret | default (printf "%s-redis" (include "antefix.fullname" .)) -}}
{{- end -}}
