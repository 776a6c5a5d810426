{{/* Placeholders from the documentation that were not replaced. With them an install fails later, or
     is unreachable. Each is a reserved name, or a word in angle brackets. */}}

{{/* A JSON list of sentences. Takes the root context. */}}
{{- define "antefix.wrongPlaceholders" -}}
{{- $wrong := list -}}
{{- $remedies := dict
  "image." "write the registry of your images"
  "global.imageRegistry" "write the registry of your images"
  "ingress.hosts" "write the hosts that clients call, or set ingress.enabled to false"
  "httpRoute.hostnames" "write the hosts that clients call, or set httpRoute.enabled to false"
  "metrics.dashboards.grafanaUrl" "write the URL of your Grafana, or leave it out"
  "models.pvc.storageClass" "write one of kubectl get storageclass, or leave it out for the default one"
  "redis.persistence.storageClass" "write one of kubectl get storageclass, or leave it out for the default one"
-}}
{{- range $found := include "antefix.placeholdersIn" (dict "path" "" "value" .Values) | fromJsonArray -}}
{{- $remedy := "write your own" -}}
{{- range $prefix, $own := $remedies -}}
{{- if hasPrefix $prefix $found.path -}}{{- $remedy = $own -}}{{- end -}}
{{- end -}}
{{- $wrong = append $wrong (printf "%s is %s, which is a placeholder: %s" $found.path $found.value $remedy) -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{/* A JSON list of {"path": keys joined by dots, "value": text}. It skips keys of mappings, and values that go to
     vLLM or Kubernetes unchanged. Takes (dict "path" ... "value" ...). */}}
{{- define "antefix.placeholdersIn" -}}
{{- $found := list -}}
{{- $opaque := list "engine_args" "podTemplate" "extraObjects" "podAnnotations" -}}
{{- if kindIs "map" .value -}}
{{- range $key, $value := .value -}}
{{- if not (has $key $opaque) -}}
{{- $path := printf "%s.%s" $.path $key | trimPrefix "." -}}
{{- $found = concat $found (include "antefix.placeholdersIn" (dict "path" $path "value" $value) | fromJsonArray) -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range .value -}}
{{- $found = concat $found (include "antefix.placeholdersIn" (dict "path" $.path "value" .) | fromJsonArray) -}}
{{- end -}}
{{- else if kindIs "string" .value -}}
{{- /* domains and addresses that are reserved for documentation (RFC 2606, 5737); AWS's example account and file
       system; words that mark placeholders */ -}}
{{- $patterns := list
  `(^|[^a-z0-9-])example\.(com|net|org)($|[^a-z0-9.-])`
  `^(192\.0\.2|198\.51\.100|203\.0\.113)\.`
  `:123456789012:|fs-0123456789abcdef0`
  `(^|[/:@.=])<[a-z][^<>]*>`
  `(^|[/:@.])(change[-_]?me($|[/:@.])|your-[a-z0-9])`
-}}
{{- if regexMatch (printf "(?i)%s" (join "|" $patterns)) .value -}}
{{- $found = append $found (dict "path" .path "value" .value) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
