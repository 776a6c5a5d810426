{{/*
The Ray Serve applications: one of gateways and one per pool, as deployments/fleet/applications.py
writes them for the same fleet. `args` contain only settings whose change restarts the application;
applications.json lists them. Takes root and fleet.
*/}}
{{- define "antefix.serveConfig" -}}
{{- $fields := .root.Files.Get "applications.json" | fromJson -}}
{{- $fleet := .fleet -}}
{{- $shared := include "antefix.fieldsAt" (dict "of" $fleet "paths" $fields.coldForAll) -}}
{{- $gateways := concat $fields.coldForAll $fields.coldForGateways -}}
{{- $settings := include "antefix.fieldsBut" (dict "of" $fleet "paths" $fields.untold) | fromYaml -}}
{{- range $name, $pool := $fleet.pools -}}
{{- $told := include "antefix.fieldsBut" (dict "of" $pool "paths" $fields.untoldOfPool) | fromYaml -}}
{{- $_ := set $settings.pools $name $told -}}
{{- end -}}
# clients reach gateways, not Ray Serve's own HTTP proxy
proxy_location: Disabled
applications:
  - name: antefix
    route_prefix: null
    import_path: deployments.app:build_gateways
    args:
      fleet:
        {{- include "antefix.fieldsAt" (dict "of" $fleet "paths" $gateways) | nindent 8 }}
    deployments:
      - name: gateway
        num_replicas: {{ $fleet.gateway.replicas | default 1 | int64 }}
        max_surge_percent: {{ $fleet.surge_percent | default 0 | int64 }}
        # reaches gateways that run, and restarts nothing
        user_config:
          {{- toYaml $settings | nindent 10 }}
  {{- range $name, $pool := $fleet.pools }}
  - name: antefix-{{ $name }}
    route_prefix: null
    import_path: deployments.app:build_pool
    args:
      fleet:
        {{- $shared | nindent 8 }}
        pools:
          {{ $name }}:
            {{- include "antefix.fieldsAt" (dict "of" $pool "paths" $fields.coldForPool) | nindent 12 }}
  {{- end }}
{{- end -}}

{{/* The values at the paths, except nulls. Takes of (a mapping) and paths, of one or two keys. */}}
{{- define "antefix.fieldsAt" -}}
{{- $found := dict -}}
{{- range .paths -}}
{{- $keys := splitList "." . -}}
{{- $key := first $keys -}}
{{- $value := get $.of $key -}}
{{- if and (hasKey $.of $key) (eq (len $keys) 1) (not (kindIs "invalid" $value)) -}}
{{- $_ := set $found $key $value -}}
{{- else if and (kindIs "map" $value) (gt (len $keys) 1) -}}
{{- $inner := get $value (last $keys) -}}
{{- if and (hasKey $value (last $keys)) (not (kindIs "invalid" $inner)) -}}
{{- $_ := set $found $key (set (get $found $key | default dict) (last $keys) $inner) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* Everything except the values at the paths. Takes the same. */}}
{{- define "antefix.fieldsBut" -}}
{{- $rest := deepCopy .of -}}
{{- range .paths -}}
{{- $keys := splitList "." . -}}
{{- $key := first $keys -}}
{{- if eq (len $keys) 1 -}}
{{- $_ := unset $rest $key -}}
{{- else if kindIs "map" (get $rest $key) -}}
{{- $_ := unset (get $rest $key) (last $keys) -}}
{{- end -}}
{{- end -}}
{{- toYaml $rest -}}
{{- end -}}
