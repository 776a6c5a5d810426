{{/* Values derived from the fleet: the fleet file that runs, and the pods of each pool.
     A null in it stands for the default, as everywhere in a fleet file. */}}

{{/* Remove, in place, the pools that a later values file set to null. Helm does so only for keys of the
     chart's values.yaml. Templates that read pools include this first. Takes the root context. */}}
{{- define "antefix.withoutNulls" -}}
{{- range $pools := list .Values.poolPods .Values.fleet.pools -}}
{{- range $name, $pool := $pools | default dict -}}
{{- if kindIs "invalid" $pool -}}
{{- $_ := unset $pools $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The fleet file for Antefix, as YAML. Takes the root context. */}}
{{- define "antefix.fleet" -}}
{{- $fleet := deepCopy .Values.fleet -}}
{{- $gateway := $fleet.gateway | default dict -}}
{{- $custom := merge (dict "antefix-gateway" 1) ($gateway.custom | default dict) -}}
{{- $gateway = merge (dict "host" (include "antefix.everyAddress" .) "replicas_per_node" 1 "custom" $custom) $gateway -}}
{{- with .Values.metrics.dashboards.grafanaUrl -}}
{{- $grafana := dict "Grafana" (printf "%s/dashboards?tag=antefix" (trimSuffix "/" .)) -}}
{{- $_ := set $gateway "links" (merge ($gateway.links | default dict) $grafana) -}}
{{- end -}}
{{- $_ := set $fleet "gateway" $gateway -}}
{{- $_ := set $fleet "metrics" (merge (dict "host" (include "antefix.everyAddress" .)) ($fleet.metrics | default dict)) -}}
{{- with include "antefix.redisUrl" . -}}
{{- $_ := set $fleet "redis" (merge (dict "url" .) ($fleet.redis | default dict)) -}}
{{- end -}}
{{- range $name, $pool := $fleet.pools -}}
{{- $of := dict "root" $ "pool" $name -}}
{{- $own := dict (printf "antefix-pool-%s" $name) 1 -}}
{{- $resources := $pool.resources | default dict -}}
{{- $custom := merge $own ($resources.custom | default dict) -}}
{{- $gpus := include "antefix.gpusOfReplica" $of | float64 -}}
{{- /* Ray's autoscaler does not know the GPU kind of a group's future pods; nodeSelector selects it */ -}}
{{- $resources = merge (dict "gpus" $gpus "custom" $custom) (omit $resources "accelerator_type") -}}
{{- $_ := set $pool "resources" $resources -}}
{{- end -}}
{{- toYaml $fleet -}}
{{- end -}}

{{/* The wildcard address on which pods listen. Takes the root context. */}}
{{- define "antefix.everyAddress" -}}
{{- eq .Values.ipFamily "IPv6" | ternary "::" "0.0.0.0" -}}
{{- end -}}

{{/* redis.url of the fleet; empty if the URL comes from a Secret. Takes the root context. */}}
{{- define "antefix.redisUrl" -}}
{{- if .Values.redis.enabled -}}
{{- printf "redis://:${ANTEFIX_REDIS_PASSWORD}@%s-redis:6379/0" (include "antefix.fullname" .) -}}
{{- else if not .Values.redis.external.existingSecret -}}
{{- .Values.redis.external.url -}}
{{- end -}}
{{- end -}}

{{- define "antefix.gatewayPort" -}}
{{- (.Values.fleet.gateway | default dict).port | default 8000 | int64 -}}
{{- end -}}

{{/* Seconds that the longest request may take, or an answer may continue after a stop. Takes the root context. */}}
{{- define "antefix.longestRequestSeconds" -}}
{{- $gateway := .Values.fleet.gateway | default dict -}}
{{- $request := kindIs "invalid" $gateway.request_timeout_s | ternary 600 $gateway.request_timeout_s -}}
{{- $drain := kindIs "invalid" $gateway.drain_timeout_s | ternary 600 $gateway.drain_timeout_s -}}
{{- maxf $request $drain | ceil | int64 -}}
{{- end -}}

{{/* Seconds from the deletion of a Ray pod until it is killed. Takes the root context. */}}
{{- define "antefix.graceSeconds" -}}
{{- $removal := .Values.upgrade.endpointRemovalSeconds | ceil -}}
{{- addf (include "antefix.longestRequestSeconds" .) $removal 30 | int64 -}}
{{- end -}}

{{/* All templates below take (dict "root" $ "pool" NAME). */}}

{{/* `enginePods` of the values, overridden by the pool's keys, as YAML. */}}
{{- define "antefix.poolSettings" -}}
{{- $settings := deepCopy .root.Values.enginePods -}}
{{- range $key, $value := index .root.Values.poolPods .pool | default dict -}}
{{- $_ := set $settings $key $value -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The engine's parallelism, as JSON: {"stages": pipeline parallel, "world": all processes}. */}}
{{- define "antefix.parallelism" -}}
{{- $sizes := dict "tensor_parallel_size" 1 "pipeline_parallel_size" 1 "prefill_context_parallel_size" 1 -}}
{{- range $key, $value := (index .root.Values.fleet.pools .pool).engine_args | default dict -}}
{{- if hasKey $sizes (replace "-" "_" $key) -}}
{{- $_ := set $sizes (replace "-" "_" $key) (max 1 (int64 $value)) -}}
{{- end -}}
{{- end -}}
{{- $world := mul $sizes.tensor_parallel_size $sizes.pipeline_parallel_size $sizes.prefill_context_parallel_size -}}
{{- dict "stages" $sizes.pipeline_parallel_size "world" $world | toJson -}}
{{- end -}}

{{/* GPUs of a replica: resources.gpus, or the number that its parallelism uses. */}}
{{- define "antefix.gpusOfReplica" -}}
{{- $gpus := ((index .root.Values.fleet.pools .pool).resources | default dict).gpus -}}
{{- if kindIs "invalid" $gpus -}}
{{- (include "antefix.parallelism" . | fromJson).world -}}
{{- else -}}
{{- $gpus -}}
{{- end -}}
{{- end -}}

{{/* Pods of a replica. Only stages with Ray workers may run on several nodes. */}}
{{- define "antefix.podsOfReplica" -}}
{{- $args := (index .root.Values.fleet.pools .pool).engine_args | default dict -}}
{{- $backend := $args.distributed_executor_backend | default (index $args "distributed-executor-backend") -}}
{{- $spans := and (gt (include "antefix.gpusOfReplica" . | float64) 0.0) (eq ($backend | default "ray") "ray") -}}
{{- $spans | ternary (include "antefix.parallelism" . | fromJson).stages 1 -}}
{{- end -}}

{{/* GPUs of one pod; a replica with a fraction of a GPU has the whole GPU. */}}
{{- define "antefix.gpusOfPod" -}}
{{- divf (include "antefix.gpusOfReplica" .) (include "antefix.podsOfReplica" .) | ceil | int64 -}}
{{- end -}}

{{/* Processes of one pod that Ray places separately: each reserves one antefix-pool-NAME. */}}
{{- define "antefix.placedInPod" -}}
{{- $pods := include "antefix.podsOfReplica" . | int64 -}}
{{- $pods | eq 1 | ternary 1 (div (include "antefix.parallelism" . | fromJson).world $pods) -}}
{{- end -}}

{{/* Numbers of pods, as JSON: {"min": ..., "max": ..., "replicas": initial}. */}}
{{- define "antefix.podsOfPool" -}}
{{- $pool := index .root.Values.fleet.pools .pool -}}
{{- $pods := include "antefix.podsOfReplica" . | int64 -}}
{{- $first := add ($pool.replicas | default 1) ($pool.warm_replicas | default 0) -}}
{{- $least := $first -}}
{{- $most := $first -}}
{{- with $pool.autoscaling -}}
{{- $least = kindIs "invalid" .min_replicas | ternary 1 .min_replicas | int64 -}}
{{- $most = .max_replicas | int64 -}}
{{- $first = max $least (min $first $most) -}}
{{- end -}}
{{- dict "min" (mul $least $pods) "max" (mul $most $pods) "replicas" (mul $first $pods) | toJson -}}
{{- end -}}
