{{/* The three kinds of Ray pods, by their differences. */}}

{{/* Takes the root context. */}}
{{- define "antefix.headPod" -}}
{{- /* no port is called `serve`: the head would become an endpoint of the clients' Service */ -}}
{{- $ports := list
  (dict "name" "gcs" "containerPort" 6379)
  (dict "name" "dashboard" "containerPort" 8265)
  (dict "name" "client" "containerPort" 10001)
  (dict "name" "metrics" "containerPort" 8080)
-}}
{{- /* KubeRay creates a new cluster for changed pods, but not for other numbers of pods */ -}}
{{- $annotations := dict -}}
{{- if not .Values.rayAutoscaler.enabled -}}
{{- $numbers := dict "gateway" ((.Values.fleet.gateway | default dict).replicas | default 1 | int64) -}}
{{- range $name, $_ := .Values.fleet.pools -}}
{{- $pods := include "antefix.podsOfPool" (dict "root" $ "pool" $name) | fromJson -}}
{{- $_ := set $numbers $name ($pods.max | int64) -}}
{{- end -}}
{{- $_ := set $annotations "antefix/pods" (toJson $numbers) -}}
{{- end -}}
{{- /* KubeRay creates a new head when the lost one is gone, which takes 300 s by default */ -}}
{{- $settings := deepCopy .Values.rayHead -}}
{{- range $taint := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $toleration := dict "key" $taint "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 30 -}}
{{- $_ := set $settings "tolerations" (append $settings.tolerations $toleration) -}}
{{- end -}}
{{- include "antefix.rayPod" (dict
  "root" . "component" "head" "pool" "" "gpus" 0 "annotations" $annotations
  "image" (include "antefix.cpuImage" .)
  "settings" $settings
  "ports" $ports
  "ready" (dict "path" "/api/healthz" "port" 52365)
) -}}
{{- end -}}

{{/* Takes (dict "root" $ "fleet" the fleet file for Antefix). */}}
{{- define "antefix.gatewayPod" -}}
{{- $ports := list
  (dict "name" "serve" "containerPort" (.fleet.gateway.port | default 8000 | int64))
  (dict "name" "antefix-metrics" "containerPort" (.fleet.metrics.port | default 9464 | int64))
  (dict "name" "metrics" "containerPort" 8080)
-}}
{{- $settings := deepCopy .root.Values.gatewayPods -}}
{{- if not $settings.affinity -}}
{{- $labels := include "antefix.selector" (dict "root" .root "component" "gateway") | fromYaml -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- $preferred := list (dict "weight" 100 "podAffinityTerm" $term) -}}
{{- $apart := dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred -}}
{{- $_ := set $settings "affinity" (dict "podAntiAffinity" $apart) -}}
{{- end -}}
{{- include "antefix.rayPod" (dict
  "root" .root "component" "gateway" "pool" "" "gpus" 0
  "image" (include "antefix.cpuImage" .root)
  "settings" $settings
  "ports" $ports
  "ready" (dict "path" "/health/serving" "port" "serve")
) -}}
{{- end -}}

{{/* Takes what antefix.gatewayPod takes, and "pool". */}}
{{- define "antefix.enginePod" -}}
{{- $of := dict "root" .root "pool" .pool -}}
{{- $gpus := include "antefix.gpusOfPod" $of | int64 -}}
{{- $ports := list
  (dict "name" "antefix-metrics" "containerPort" (.fleet.metrics.port | default 9464 | int64))
  (dict "name" "metrics" "containerPort" 8080)
-}}
{{- include "antefix.rayPod" (dict
  "root" .root "component" "engine" "pool" .pool "gpus" $gpus
  "image" (include (gt $gpus 0 | ternary "antefix.gpuImage" "antefix.cpuImage") .root)
  "settings" (include "antefix.poolSettings" $of | fromYaml)
  "ports" $ports
  "ready" (dict "path" "/api/local_raylet_healthz" "port" 52365)
) -}}
{{- end -}}
