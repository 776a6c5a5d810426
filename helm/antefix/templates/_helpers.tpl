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

{{/* Takes (dict "root" $ "image" ...). An image without the key `registry` is one of Antefix's. */}}
{{- define "antefix.image" -}}
{{- $repository := .image.repository -}}
{{- $registry := hasKey .image "registry" | ternary .image.registry .root.Values.image.registry -}}
{{- with .root.Values.global.imageRegistry | default $registry -}}
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
{{- with concat .Values.global.imagePullSecrets .Values.imagePullSecrets | uniq -}}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Without nulls, which stand for what the cluster chooses. */}}
{{- define "antefix.podSecurityContext" -}}
{{- include "antefix.merged" (dict "below" dict "above" .Values.podSecurityContext) | fromJson | toYaml -}}
{{- end -}}

{{- define "antefix.containerSecurityContext" -}}
{{- include "antefix.merged" (dict "below" dict "above" .Values.securityContext) | fromJson | toYaml -}}
{{- end -}}

{{/* For containers that write only to volumes. */}}
{{- define "antefix.readOnlySecurityContext" -}}
{{- $below := dict "readOnlyRootFilesystem" true -}}
{{- include "antefix.merged" (dict "below" $below "above" .Values.securityContext) | fromJson | toYaml -}}
{{- end -}}

{{/* Name of the Secret with api-keys and engine-secret. */}}
{{- define "antefix.authSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-auth" (include "antefix.fullname" .)) -}}
{{- end -}}

{{/* Name of the Secret with the password of the chart's Redis. */}}
{{- define "antefix.redisSecret" -}}
{{- .Values.redis.existingSecret | default (printf "%s-redis" (include "antefix.fullname" .)) -}}
{{- end -}}
