{{/* Parts of NOTES.txt. Each takes the root context. */}}

{{/* The model names of requests, one line per pool. */}}
{{- define "antefix.modelNames" -}}
{{- $names := list -}}
{{- range .Values.fleet.pools -}}
{{- $of := eq .model "embedded" | ternary "smollm2-135m-instruct" (.model | trimSuffix "/" | splitList "/" | last) -}}
{{- $names = append $names (.served_model_name | default $of) -}}
{{- end -}}
{{- $names | uniq | join "\n" -}}
{{- end -}}

{{/* The external URL of the API; empty if there is none. */}}
{{- define "antefix.outside" -}}
{{- if and .Values.ingress.enabled .Values.ingress.hosts -}}
{{- printf "%s://%s" (.Values.ingress.tls | empty | ternary "http" "https") (first .Values.ingress.hosts) -}}
{{- else if and .Values.httpRoute.enabled .Values.httpRoute.hostnames -}}
{{- printf "https://%s" (first .Values.httpRoute.hostnames) -}}
{{- end -}}
{{- end -}}

{{/* A command that prints the address of the Gateway that the HTTPRoute attaches to; empty without one. The resource has
its full name, because Istio also has a kind Gateway. */}}
{{- define "antefix.addressOfGateway" -}}
{{- if and .Values.httpRoute.enabled .Values.httpRoute.parentRefs -}}
{{- $parent := first .Values.httpRoute.parentRefs -}}
{{- if eq ($parent.kind | default "Gateway") "Gateway" -}}
{{- printf "kubectl -n %s get gateways.gateway.networking.k8s.io %s -o jsonpath='{.status.addresses[0].value}'" ($parent.namespace | default .Release.Namespace) $parent.name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Features that are off, one per line, with the key that turns them on. */}}
{{- define "antefix.notEnabled" -}}
{{- $v := .Values -}}
{{- $features := list
  (list (or $v.ingress.enabled $v.httpRoute.enabled (ne $v.service.type "ClusterIP")) "access from outside the cluster" "ingress.enabled or httpRoute.enabled")
  (list $v.metrics.podMonitor.enabled "metrics in Prometheus" "metrics.podMonitor.enabled, with metrics.prometheusNamespace")
  (list $v.metrics.prometheusRule.enabled "burn-rate alerts of the SLOs" "metrics.prometheusRule.enabled")
  (list $v.metrics.dashboards.enabled "Grafana's dashboards" "metrics.dashboards.enabled")
  (list $v.tracing.otlpEndpoint "traces" "tracing.otlpEndpoint")
  (list (ne $v.models.storage "none") "stored weights (each pod downloads them)" "models.storage")
  (list $v.rayAutoscaler.enabled "pods added and removed with replicas" "rayAutoscaler.enabled")
  (list $v.warmNodes.enabled "warm GPU nodes" "warmNodes.enabled")
  (list $v.gcsFaultTolerance.enabled "the state of Ray's head in Redis" "gcsFaultTolerance.enabled")
  (list $v.rayAuth.enabled "a token for Ray's ports" "rayAuth.enabled")
  (list $v.networkPolicy.enabled "network policies" "networkPolicy.enabled")
  (list (and $v.networkPolicy.enabled $v.networkPolicy.egress.enabled) "limits on pods' outgoing connections" "networkPolicy.egress.enabled")
  (list $v.podDisruptionBudget.enabled "pod disruption budgets" "podDisruptionBudget.enabled")
-}}
{{- range $features -}}
{{- if not (index . 0) }}
  {{ index . 1 | printf "%-44s" }} {{ index . 2 }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What to decide before users depend on the release, one per line. Neither defaults nor shipped values files trigger a
     warning, so what holds for them is here. */}}
{{- define "antefix.beforeProduction" -}}
{{- if eq ((.Values.fleet.gateway | default dict).replicas | default 1 | int64) 1 }}
- There is only one gateway: while its node is unavailable, requests fail. Set fleet.gateway.replicas to 2.
{{- end -}}
{{- with .Values.podDisruptionBudget -}}
{{- if and .enabled .protectHead (not $.Values.gcsFaultTolerance.enabled) }}
- The head cannot be evicted, so a drain or a managed upgrade of its node fails. Keep it on a node that stays, set
  gcsFaultTolerance.enabled, or set podDisruptionBudget.protectHead to false.
{{- end -}}
{{- end -}}
{{- if and (eq .Values.models.storage "none") (include "antefix.hubModels" .) }}
- models.storage is none: each engine's pod downloads its weights to its node's disk at every start. A node
  whose disk is too small evicts the pod, and the download starts again: use pvc or hostPath for large models.
{{- end -}}
{{- if eq .Values.models.storage "hostPath" }}
- models.storage is hostPath, which the restricted pod security standard forbids: label the namespace
  pod-security.kubernetes.io/enforce=privileged, or use pvc.
{{- end -}}
{{- end -}}

{{/* Warnings about settings that work but may surprise, one per line. */}}
{{- define "antefix.warnings" -}}
{{- $gateway := .Values.fleet.gateway | default dict -}}
{{- $request := kindIs "invalid" $gateway.request_timeout_s | ternary 600 $gateway.request_timeout_s -}}
{{- $drain := kindIs "invalid" $gateway.drain_timeout_s | ternary 600 $gateway.drain_timeout_s -}}
{{- if lt (float64 $drain) (float64 $request) }}
- An answer may take {{ $request }} s, but when Ray Serve stops a gateway or an engine, its answers are cut after
  {{ $drain }} s, except those that another engine resumes: set fleet.gateway.drain_timeout_s to {{ $request }} to cut none.
{{- end -}}
{{- range $name, $pool := .Values.fleet.pools -}}
{{- $settings := include "antefix.poolSettings" (dict "root" $ "pool" $name) | fromYaml -}}
{{- $type := ($pool.resources | default dict).accelerator_type -}}
{{- if and $type (not $settings.nodeSelector) (not $settings.affinity) }}
- fleet.pools.{{ $name }}.resources.accelerator_type is {{ $type }}, which does not select nodes here: set
  poolPods.{{ $name }}.nodeSelector, such as nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB.
{{- end -}}
{{- end -}}
{{- if not .Values.rayAuth.enabled }}
{{- if .Values.networkPolicy.enabled }}
- Anyone who reaches Ray's ports can run code there. Network policies close them only if your network plugin
  enforces policies: check that it does, or set rayAuth.enabled.
{{- else }}
- Anyone who reaches Ray's ports can run code there, and they are open: set rayAuth.enabled, or
  networkPolicy.enabled if your network plugin enforces policies.
{{- end }}
{{- end -}}
{{- end -}}
