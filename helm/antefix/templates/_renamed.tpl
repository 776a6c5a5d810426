{{/*
Fails if the values contain keys of renamed.yaml, or removed keys of the fleet file, and lists all
of them. Takes the root context.
*/}}
{{- define "antefix.checkRenamed" -}}
{{- $found := list -}}
{{- $remedies := (.Files.Get "applications.json" | fromJson).removed -}}
{{- range $path, $instead := .Files.Get "renamed.yaml" | fromYaml -}}
  {{- $_ := set $remedies $path (printf "write %s" $instead) -}}
{{- end -}}
{{- range $path, $remedy := $remedies -}}
  {{- $places := list (dict "path" list "value" $.Values) -}}
  {{- range $part := splitList "." $path -}}
    {{- $next := list -}}
    {{- range $place := $places -}}
      {{- if kindIs "map" $place.value -}}
        {{- range $key, $value := $place.value -}}
          {{- if or (eq $part "*") (eq $part $key) -}}
            {{- $next = append $next (dict "path" (append $place.path $key) "value" $value) -}}
          {{- end -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
    {{- $places = $next -}}
  {{- end -}}
  {{- range $places -}}
    {{- $found = append $found (printf "%s is not a key of this chart: %s" (join "." .path) $remedy) -}}
  {{- end -}}
{{- end -}}
{{- if $found -}}
  {{- fail (printf "\nvalues: %s" (join "\nvalues: " $found)) -}}
{{- end -}}
{{- end -}}
