{{/* A pod of Ray, as a template of KubeRay's. Takes a dict:
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
  # only Ray's autoscaler, beside the head, talks to Kubernetes
  automountServiceAccountToken: {{ and $head .root.Values.autoscaler.enabled }}
  # or the Service's own variables, such as ANTEFIX_PORT, would be read as settings of Antefix
  enableServiceLinks: false
  # else Ray's autoscaler and the loops of init containers are PID 1, to which Linux delivers no SIGTERM that
  # they have no handler for: a pod that is deleted would stay for its whole grace period, and a new head
  # is made only when the old one has gone
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
      # the last lines of a `ray start` that failed, for who asks why: KubeRay deletes such a pod, and its log
      terminationMessagePolicy: FallbackToLogsOnError
      # both probes are ours: KubeRay's readiness asks workers for Ray Serve's own proxy, which does not
      # run here, and before 1.6 its liveness needs a program in the image
      livenessProbe:
        {{- $replaceable := and $head .root.Values.gcsFaultTolerance.enabled .root.Values.autoscaler.enabled }}
        {{- if $replaceable }}
        # Ray's autoscaler, too: nobody starts its container again, since Ray's second autoscaler wants pods
        # that are not restarted. With its state in Redis a new head costs no request
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
    # a folder, not a subPath or a variable: a rotated key arrives without a restart
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
# the page's hints name commands that work here
- name: ANTEFIX_PLATFORM
  value: kubernetes
# a gateway that Ray Serve replaces, in a pod that stays, goes on that long
- name: ANTEFIX_UNHEARD_S
  value: {{ .Values.upgrade.endpointRemovalSeconds | quote }}
# else Ray waits for half a minute after SIGTERM for what preStop has seen to already
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

{{/* The settings' resources, and the GPUs. Takes what antefix.rayPod takes. */}}
{{- define "antefix.podResources" -}}
{{- $resources := deepCopy .settings.resources -}}
{{- if .gpus -}}
{{- range $kind := list "requests" "limits" -}}
{{- $gpu := dict $.root.Values.engine.gpuResource $.gpus -}}
{{- $_ := set $resources $kind (merge $gpu (index $resources $kind | default dict)) -}}
{{- end -}}
{{- end -}}
{{- include "antefix.quantities" $resources -}}
{{- end -}}

{{/* What runs in a pod before SIGTERM, as JSON. Takes what antefix.rayPod takes. */}}
{{- define "antefix.preStop" -}}
{{- $after := .root.Values.upgrade.endpointRemovalSeconds -}}
{{- $within := addf (include "antefix.longestRequestSeconds" .root) $after | ceil | int64 -}}
{{- $command := list "python" "-m" "deployments.node_drain" -}}
{{- if eq .component "head" -}}
{{- $command = append $command "--head" -}}
{{- end -}}
{{- concat $command (list "--after" (toString $after) "--within" (toString $within)) | toJson -}}
{{- end -}}

{{/* rayStartParams of every pod: Ray's own ports, which a network policy has to know and which are
     else chosen at random. They leave the system's own, from 32768 on, to the engines. */}}
{{- define "antefix.rayPorts" -}}
node-manager-port: "6380"
object-manager-port: "6381"
dashboard-agent-grpc-port: "6382"
runtime-env-agent-port: "6383"
dashboard-agent-listen-port: "52365"
min-worker-port: "10002"
max-worker-port: "19999"
{{- end -}}

{{/* Custom resources of a pod, in the quotes that KubeRay wants for the shell. Takes a dict of numbers. */}}
{{- define "antefix.rayResources" -}}
{{- toJson . | squote | quote -}}
{{- end -}}
