{{/* Check that engines on CPUs have the memory that vLLM requires at its start: the container's limit must fit
     weights, processes and the KV cache. `antefix k8s preflight` knows the weights of more models
     (k8s/preflight/cpu_memory.py has the sources of the numbers). Without a dtype the node's CPU decides, and float32
     takes the most. Takes the root context. */}}
{{- define "antefix.wrongMemory" -}}
{{- $wrong := list -}}
{{- $processes := 1794113536.0 -}}
{{- $embedded := dict "auto" 538060032.0 "float32" 538060032.0 "float" 538060032.0 -}}
{{- range $name, $pool := .Values.fleet.pools -}}
{{- $of := dict "root" $ "pool" $name -}}
{{- $args := $pool.engine_args | default dict -}}
{{- $cache := mulf (($pool.env | default dict).VLLM_CPU_KVCACHE_SPACE | default 0 | float64) 1073741824.0 -}}
{{- $limit := ((include "antefix.poolSettings" $of | fromYaml).resources.limits | default dict).memory -}}
{{- if and $cache $limit (eq (include "antefix.gpusOfReplica" $of | float64) 0.0) -}}
{{- $weights := 0.0 -}}
{{- if eq $pool.model "embedded" -}}
{{- $weights = index $embedded ($args.dtype | default "auto") | default 269030016.0 -}}
{{- end -}}
{{- $need := addf $cache $weights $processes -}}
{{- if lt (include "antefix.bytes" $limit | float64) $need -}}
{{- $own := (index $.Values.poolPods $name | default dict).resources | empty | ternary "enginePods" (printf "poolPods.%s" $name) -}}
{{- $wrong = append $wrong (printf "%s.resources.limits.memory is %s: vLLM would refuse to start engines of %s, whose KV cache, weights and processes take %.2f GiB. Set it to %dGi or more, or lower VLLM_CPU_KVCACHE_SPACE" $own $limit $name (divf $need 1073741824.0) (divf $need 1073741824.0 | ceil | int64)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{/* The bytes of a quantity of memory. */}}
{{- define "antefix.bytes" -}}
{{- $text := toString . -}}
{{- $units := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (index $units (regexReplaceAll "^[0-9.]+" $text "")) | printf "%.0f" -}}
{{- end -}}
