{{/* Faults of the values that the schema cannot find, all at once. Takes the root context. */}}
{{- define "antefix.check" -}}
{{- $wrong := concat
  (include "antefix.wrongInFleet" . | fromJsonArray)
  (include "antefix.wrongInPools" . | fromJsonArray)
  (include "antefix.wrongAround" . | fromJsonArray)
  (include "antefix.wrongMemory" . | fromJsonArray)
  (include "antefix.wrongPlaceholders" . | fromJsonArray)
-}}
{{- if $wrong -}}
{{- $wrong | join "\n" | printf "\n%s" | fail -}}
{{- end -}}
{{- end -}}

{{- define "antefix.wrongInFleet" -}}
{{- $wrong := list -}}
{{- $gateway := .Values.fleet.gateway | default dict -}}
{{- $metrics := .Values.fleet.metrics | default dict -}}
{{- if not .Values.fleet.pools -}}
{{- $wrong = append $wrong "fleet is empty: write which models to serve under fleet.pools, as in docs/fleet-file.md, or start with --values helm/antefix/values/single-node-a100.yaml" -}}
{{- end -}}
{{- range $key, $section := dict "gateway" $gateway "metrics" $metrics -}}
{{- $all := include "antefix.everyAddress" $ -}}
{{- $host := $section.host | default $all -}}
{{- if ne $host $all -}}
{{- $wrong = append $wrong (printf "fleet.%s.host is %s: a pod listens on all of its addresses, so leave it out; for IPv6, set ipFamily to IPv6" $key $host) -}}
{{- end -}}
{{- end -}}
{{- if and (gt (.Values.fleet.surge_percent | default 0 | int) 0) (not .Values.rayAutoscaler.enabled) -}}
{{- $wrong = append $wrong (printf "fleet.surge_percent is %v, but without Ray's autoscaler no pods are added for more replicas: set rayAutoscaler.enabled to true, or leave fleet.surge_percent out" .Values.fleet.surge_percent) -}}
{{- end -}}
{{- $per := $gateway.replicas_per_node -}}
{{- if not (or (kindIs "invalid" $per) (eq (toString $per) "1")) -}}
{{- $wrong = append $wrong (printf "fleet.gateway.replicas_per_node is %v: each gateway has a separate pod, so leave it out, and set the number of gateways with fleet.gateway.replicas" $per) -}}
{{- end -}}
{{- if (.Values.fleet.redis | default dict).url -}}
{{- $wrong = append $wrong "fleet.redis.url is set, but the chart sets it: leave it out. For a Redis outside the release, set redis.enabled to false, and redis.external.url or redis.external.existingSecret" -}}
{{- end -}}
{{- $ports := dict "gateway.port" ($gateway.port | default 8000) "metrics.port" ($metrics.port | default 9464) -}}
{{- range $key, $port := $ports -}}
{{- $port = int $port -}}
{{- if or (has $port (list 6379 6380 6381 6382 6383 8080 8265 52365)) (and (ge $port 10001) (le $port 19999)) -}}
{{- $wrong = append $wrong (printf "fleet.%s is %d: Ray uses this port in every pod, so choose another, such as the default" $key $port) -}}
{{- end -}}
{{- if lt $port 1024 -}}
{{- $wrong = append $wrong (printf "fleet.%s is %d: pods do not run as root and cannot listen on ports below 1024. Choose another port; clients connect to service.port" $key $port) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "antefix.wrongInPools" -}}
{{- $wrong := list -}}
{{- $pools := .Values.fleet.pools | default dict -}}
{{- range $name, $pool := $pools -}}
{{- if has $name (list "gateway" "head" "headgroup") -}}
{{- $wrong = append $wrong (printf "fleet.pools.%s: the chart uses this name for other pods, so rename the pool" $name) -}}
{{- end -}}
{{- range $variable, $value := $pool.env | default dict -}}
{{- if contains "${" (replace "$${" "" (toString $value)) -}}
{{- $wrong = append $wrong (printf "fleet.pools.%s.env.%s is %s: the chart cannot read variables of your shell. Leave it out, and set the variable with enginePods.envFrom, or HF_TOKEN with models.hub.existingSecret" $name $variable $value) -}}
{{- end -}}
{{- end -}}
{{- if and (kindIs "string" $pool.slo) (ne (toString $pool.slo) "default") -}}
{{- $wrong = append $wrong (printf "fleet.pools.%s.slo is %s: the pods do not have that file, so write the targets here, or use default" $name $pool.slo) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.poolPods -}}
{{- if not (hasKey $pools $name) -}}
{{- $wrong = append $wrong (printf "poolPods.%s: fleet.pools has no pool of this name. Its pools are: %s" $name (keys $pools | sortAlpha | join ", " | default "none")) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "antefix.wrongAround" -}}
{{- $wrong := list -}}
{{- if and .Values.metrics.podMonitor.enabled .Values.networkPolicy.enabled (not .Values.metrics.prometheusNamespace) -}}
{{- $wrong = append $wrong (printf "metrics.prometheusNamespace is empty, so the network policies admit only a Prometheus in %s: set it to the namespace of your Prometheus, or to \"*\" for all namespaces" .Release.Namespace) -}}
{{- end -}}
{{- $name := include "antefix.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- $wrong = append $wrong (printf "the objects would be called %s: KubeRay requires lowercase letters, digits and hyphens, with a letter at the beginning. Set fullnameOverride" $name) -}}
{{- end -}}
{{- range $section := list "commonLabels" "podLabels" -}}
{{- range $label, $_ := index $.Values $section -}}
{{- if regexMatch "^(antefix/|ray.io/|helm.sh/|app.kubernetes.io/(name|instance|version|managed-by)$)" $label -}}
{{- $wrong = append $wrong (printf "%s has %s: the chart sets that label and selects pods by it, so choose another" $section $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $kinds := list "cpu" -}}
{{- range $pool, $_ := .Values.fleet.pools -}}
{{- if include "antefix.gpusOfPod" (dict "root" $ "pool" $pool) | int64 -}}
{{- $kinds = list "cpu" "gpu" -}}
{{- end -}}
{{- end -}}
{{- range $kinds -}}
{{- $repository := (index $.Values.image .).repository -}}
{{- if not (or $.Values.global.imageRegistry $.Values.image.registry (contains "/" $repository)) -}}
{{- $wrong = append $wrong (printf "image.registry is empty, so image.%s.repository is %s, which no public registry has: build it with make image-%s, push it, and set image.registry, for example to registry.example.com/llm" . $repository .) -}}
{{- end -}}
{{- end -}}
{{- $redis := .Values.redis -}}
{{- $images := dict "image.cpu" .Values.image.cpu "image.gpu" .Values.image.gpu "redis.image" $redis.image "warmNodes.image" .Values.warmNodes.image -}}
{{- range $key, $image := $images -}}
{{- $own := hasKey $image "registry" | ternary (printf "%s.registry" $key) "image.registry" -}}
{{- $registry := hasKey $image "registry" | ternary $image.registry $.Values.image.registry -}}
{{- $named := $.Values.global.imageRegistry | empty | ternary $own "global.imageRegistry" -}}
{{- if and ($.Values.global.imageRegistry | default $registry) (regexMatch `^([^/]*[.:][^/]*|localhost)/` $image.repository) -}}
{{- $wrong = append $wrong (printf "%s.repository is %s, which starts with a registry, and %s names one too: write the registry only in %s" $key $image.repository $named $own) -}}
{{- end -}}
{{- end -}}
{{- $external := $redis.external -}}
{{- if not .Values.auth.generate -}}
{{- if not .Values.auth.existingSecret -}}
{{- $wrong = append $wrong "auth.generate is false and auth.existingSecret is empty: create a Secret with the keys api-keys and engine-secret, and set auth.existingSecret to its name" -}}
{{- end -}}
{{- if and $redis.enabled (not $redis.existingSecret) -}}
{{- $wrong = append $wrong "auth.generate is false and redis.existingSecret is empty: create a Secret with the key password, and set redis.existingSecret to its name" -}}
{{- end -}}
{{- end -}}
{{- if and (not $redis.enabled) (not $external.url) (not $external.existingSecret) -}}
{{- $wrong = append $wrong "redis.enabled is false, but redis.external is empty: set redis.external.url or redis.external.existingSecret, or set redis.enabled to true" -}}
{{- end -}}
{{- if and $redis.enabled (or $external.url $external.existingSecret) -}}
{{- $wrong = append $wrong "redis.external is set, but redis.enabled is true: set redis.enabled to false to use the external one" -}}
{{- end -}}
{{- if and $external.url $external.existingSecret -}}
{{- $wrong = append $wrong "redis.external.url and redis.external.existingSecret are both set: remove one of them" -}}
{{- end -}}
{{- $egress := .Values.networkPolicy.egress -}}
{{- if and .Values.networkPolicy.enabled $egress.enabled (not $egress.allowed) -}}
{{- $away := list -}}
{{- if not $redis.enabled -}}{{- $away = append $away "redis.external" -}}{{- end -}}
{{- if .Values.tracing.otlpEndpoint -}}{{- $away = append $away "tracing.otlpEndpoint" -}}{{- end -}}
{{- $fetches := or (eq .Values.models.storage "none") .Values.models.download.enabled -}}
{{- if and (not $egress.internet) $fetches (include "antefix.hubModels" .) -}}{{- $away = append $away "the source of weights" -}}{{- end -}}
{{- range $away -}}
{{- $wrong = append $wrong (printf "networkPolicy.egress.enabled is true, but no rule allows %s: add one to networkPolicy.egress.allowed" .) -}}
{{- end -}}
{{- end -}}
{{- if .Values.gcsFaultTolerance.enabled -}}
{{- if $redis.enabled -}}
{{- if not $redis.persistence.enabled -}}
{{- $wrong = append $wrong "gcsFaultTolerance.enabled is true: set redis.persistence.enabled too, because otherwise a restart of Redis loses the state of Ray's head" -}}
{{- end -}}
{{- else if not (regexMatch "^rediss?://" $external.url) -}}
{{- $wrong = append $wrong "gcsFaultTolerance.enabled is true: Ray's head needs the plain address of one Redis. Set redis.external.url to redis://host:6379/0, or run the chart's own Redis with redis.persistence.enabled" -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}
