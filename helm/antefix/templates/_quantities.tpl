{{/* Resources with every quantity in Go's form. KubeRay (1.6) writes the RayService back when it adds its
     finalizer. KubeRay then owns each list or field that it changes, and Helm 4, which uses server-side
     apply, would end every upgrade in a conflict. Takes resources of a container. */}}
{{- define "antefix.quantities" -}}
{{- $resources := deepCopy . -}}
{{- range $kind := list "requests" "limits" -}}
{{- $amounts := dict -}}
{{- range $name, $amount := get $resources $kind | default dict -}}
{{- if not (kindIs "invalid" $amount) -}}
{{- $_ := set $amounts $name (include "antefix.quantity" $amount) -}}
{{- end -}}
{{- end -}}
{{- $_ := unset $resources $kind -}}
{{- if $amounts -}}
{{- $_ := set $resources $kind $amounts -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* The canonical form of apimachinery's resource.Quantity: no fraction, and the largest suffix that gives a
     whole number, such as 500m for 0.5 and 1536Mi for 1.5Gi. Takes a number, or a string in Kubernetes' form. */}}
{{- define "antefix.quantity" -}}
{{- $text := kindIs "string" . | ternary . (printf "%f" (float64 .)) -}}
{{- $number := regexFind "^[0-9.]+" $text | float64 -}}
{{- $suffix := regexReplaceAll "^[0-9.]+" $text "" -}}
{{- $binary := list "" "Ki" "Mi" "Gi" "Ti" "Pi" "Ei" -}}
{{- $decimal := list "m" "" "k" "M" "G" "T" "P" "E" -}}
{{- if and $suffix (has $suffix $binary) -}}
{{- include "antefix.scaled" (dict "number" $number "suffix" $suffix "suffixes" $binary "base" 1024) -}}
{{- else if has $suffix $decimal -}}
{{- include "antefix.scaled" (dict "number" $number "suffix" $suffix "suffixes" $decimal "base" 1000) -}}
{{- else -}}
{{- $text -}}
{{- end -}}
{{- end -}}

{{/* Takes (dict "number" ... "suffix" its suffix "suffixes" from the smallest "base" the factor between two). */}}
{{- define "antefix.scaled" -}}
{{- $amount := .number -}}
{{- $reached := false -}}
{{- range reverse .suffixes -}}
{{- if $reached -}}{{- $amount = mulf $amount $.base -}}{{- end -}}
{{- if eq . $.suffix -}}{{- $reached = true -}}{{- end -}}
{{- end -}}
{{- $amount = ceil $amount | int64 -}}
{{- $steps := 0 -}}
{{- range rest .suffixes -}}
{{- if and $amount (eq (mod $amount $.base) 0) -}}
{{- $amount = div $amount $.base -}}
{{- $steps = add1 $steps -}}
{{- end -}}
{{- end -}}
{{- $amount }}{{ if $amount }}{{ index .suffixes (int $steps) }}{{ end -}}
{{- end -}}
