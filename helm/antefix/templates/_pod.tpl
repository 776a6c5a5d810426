{{/* A Ray pod, as a pod template of KubeRay. Takes a dict:
       root, component, pool (or ""), image, settings (resources, nodeSelector, ... as in the values),
       ports (of the container), ready (path and port of the readiness probe), gpus. */}}
{{- define "antefix.rayPod" -}}
{{- $settings := merge (pick .root.Values "podLabels" "schedulerName") .settings -}}
{{- include "antefix.customised" (dict "template" (include "antefix.plainRayPod" .) "settings" $settings) -}}
{{- end -}}

{{- define "antefix.plainRayPod" -}}
{{- $engine := eq .component "engine" -}}
{{- $head := eq .component "head" -}}
metadata:
  labels:
    {{- include "antefix.rayLabels" . | nindent 4 }}
  {{- with merge (dict) (.annotations | default dict) .root.Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "antefix.serviceAccountName" .root }}
  # only Ray's autoscaler, in the head's pod, uses Kubernetes' API
  automountServiceAccountToken: {{ and $head .root.Values.rayAutoscaler.enabled }}
  # otherwise Antefix would read the Service's variables, such as ANTEFIX_PORT, as settings
  enableServiceLinks: false
  # otherwise Ray's autoscaler and the loops of init containers are PID 1, and Linux does not deliver SIGTERM to
  # a PID 1 without a handler: a deleted pod would stay for its whole grace period, and KubeRay creates a new
  # head only when the old one is gone
  shareProcessNamespace: true
  terminationGracePeriodSeconds: {{ include "antefix.graceSeconds" .root }}
  {{- with include "antefix.imagePullSecrets" .root }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- include "antefix.podSecurityContext" .root | nindent 4 }}
  {{- if and .gpus .settings.runtimeClassName }}
  runtimeClassName: {{ .settings.runtimeClassName }}
  {{- end }}
  {{- with .settings.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .settings.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .settings.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $engine }}
  {{- with include "antefix.modelInitContainers" . }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  {{- end }}
  containers:
    - name: ray-{{ .component }}
      image: {{ .image }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      # KubeRay runs it before `ray start`, in the same shell. It copies the logs of Ray's processes, which are
      # in files, to the container's stdout
      args: [{{ list "{ python -m deployments.process.log_to_stdout" .component .pool "& }" | compact | join " " | quote }}]
      ports:
        {{- toYaml .ports | nindent 8 }}
      env:
        {{- include "antefix.rayEnv" .root | nindent 8 }}
        {{- with and $engine (include "antefix.modelEnv" .root) }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with and $engine (include "antefix.compileCacheEnv" .) }}
        {{- . | nindent 8 }}
        {{- end }}
      resources:
        {{- include "antefix.podResources" . | nindent 8 }}
      securityContext:
        {{- include "antefix.containerSecurityContext" .root | nindent 8 }}
      # keeps the last lines of a failed `ray start`: KubeRay deletes such a pod, and its log
      terminationMessagePolicy: FallbackToLogsOnError
      # both probes replace KubeRay's. Its readiness probe asks workers for Ray Serve's proxy, which does not
      # run here. Before 1.6 its liveness probe needs a program in the image
      livenessProbe:
        {{- $replaceable := and $head .root.Values.gcsFaultTolerance.enabled .root.Values.rayAutoscaler.enabled }}
        {{- if $replaceable }}
        # checks Ray's autoscaler too: its container is not restarted, since Ray's second autoscaler requires
        # pods without restarts. With its state in Redis, a new head costs no request
        exec:
          command:
            - bash
            - -c
            - >-
              grep -qsa 'kuberay[-]autoscaler' /proc/[0-9]*/cmdline &&
              wget -qO /dev/null -T 4 http://127.0.0.1:52365/api/healthz
        {{- else }}
        httpGet: {path: /api/healthz, port: 52365}
        {{- end }}
        initialDelaySeconds: 30
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ $replaceable | ternary 24 120 }}
      readinessProbe:
        httpGet: {path: {{ .ready.path }}, port: {{ .ready.port }}}
        periodSeconds: 2
        timeoutSeconds: 5
      lifecycle:
        preStop:
          exec:
            command: {{ include "antefix.preStop" . }}
      volumeMounts:
        - {name: auth, mountPath: /etc/antefix/auth, readOnly: true}
        {{- with and $engine (include "antefix.modelMounts" .root) }}
        {{- . | nindent 8 }}
        {{- end }}
  volumes:
    # a folder, not a subPath or a variable, so that a rotated key arrives without a restart
    - name: auth
      secret:
        secretName: {{ include "antefix.authSecret" .root }}
        items: [{key: api-keys, path: api-keys}]
    {{- with and $engine (include "antefix.modelVolumes" .root) }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Environment of every Ray container: Serve may build the application in any of them.
     Takes the root context. */}}
{{- define "antefix.rayEnv" -}}
- name: ANTEFIX_API_KEYS_FILE
  value: /etc/antefix/auth/api-keys
- name: ANTEFIX_ENGINE_SECRET
  valueFrom:
    secretKeyRef: {name: {{ include "antefix.authSecret" . }}, key: engine-secret}
# so that the page's hints name commands that work here
- name: ANTEFIX_PLATFORM
  value: kubernetes
# a gateway that Ray Serve replaces, in a pod that stays, continues for this long
- name: ANTEFIX_UNHEARD_S
  value: {{ .Values.upgrade.endpointRemovalSeconds | quote }}
# otherwise Ray waits half a minute after SIGTERM for work that preStop has already finished
- name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S
  value: "0"
- name: ANTEFIX_CLUSTER
  valueFrom:
    fieldRef: {fieldPath: "metadata.labels['ray.io/cluster']"}
- name: ANTEFIX_PEERS_URL
  value: http://{{ include "antefix.fullname" . }}-peers:{{ include "antefix.gatewayPort" . }}
{{- if .Values.redis.enabled }}
- name: ANTEFIX_REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ include "antefix.redisSecret" . }}, key: password}
{{- else if .Values.redis.external.existingSecret }}
- name: ANTEFIX_REDIS_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.redis.external.existingSecret }}, key: url}
{{- end }}
{{- with .Values.tracing.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The resources of the settings, and the GPUs. Takes what antefix.rayPod takes. */}}
{{- define "antefix.podResources" -}}
{{- $resources := deepCopy .settings.resources -}}
{{- if .gpus -}}
{{- range $kind := list "requests" "limits" -}}
{{- $gpu := dict $.root.Values.enginePods.gpuResource $.gpus -}}
{{- $_ := set $resources $kind (merge $gpu (index $resources $kind | default dict)) -}}
{{- end -}}
{{- end -}}
{{- include "antefix.quantities" $resources -}}
{{- end -}}

{{/* The preStop command, which runs before SIGTERM, as JSON. Takes what antefix.rayPod takes. */}}
{{- define "antefix.preStop" -}}
{{- $after := .root.Values.upgrade.endpointRemovalSeconds -}}
{{- $within := addf (include "antefix.longestRequestSeconds" .root) $after | ceil | int64 -}}
{{- $command := list "python" "-m" "deployments.node_drain" -}}
{{- if eq .component "head" -}}
{{- $command = append $command "--head" -}}
{{- end -}}
{{- concat $command (list "--after" (toString $after) "--within" (toString $within)) | toJson -}}
{{- end -}}

{{/* rayStartParams of every pod: Ray's ports. Network policies need fixed ones; by default Ray chooses them at
     random. Ports from 32768 on stay free for the engines. */}}
{{- define "antefix.rayPorts" -}}
node-manager-port: "6380"
object-manager-port: "6381"
dashboard-agent-grpc-port: "6382"
runtime-env-agent-port: "6383"
dashboard-agent-listen-port: "52365"
min-worker-port: "10002"
max-worker-port: "19999"
{{- end -}}

{{/* Custom resources of a pod, quoted for the shell as KubeRay requires. Takes a dict of numbers. */}}
{{- define "antefix.rayResources" -}}
{{- toJson . | squote | quote -}}
{{- end -}}
