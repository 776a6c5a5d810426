{{/* The rules of files/rules.yaml with metrics.prometheusRule.levels. Takes the root context. */}}
{{- define "antefix.rules" -}}
{{- $levels := .Values.metrics.prometheusRule.levels -}}
{{- $known := list -}}
{{- $groups := list -}}
{{- range $group := (.Files.Get "files/rules.yaml" | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- $path := printf "%s.%s" $rule.alert (dig "labels" "severity" "" $rule) -}}
{{- $known = append $known $path -}}
{{- $own := dig ($rule.alert | default "") (dig "labels" "severity" "" $rule) dict $levels | default dict -}}
{{- range $end, $sign := dict "above" ">" "below" "<" -}}
{{- if hasKey $own $end -}}
{{- $level := printf "(?m)\\) %s [-+.0-9e]+$" $sign -}}
{{- if not (regexMatch $level $rule.expr) -}}
{{- fail (printf "metrics.prometheusRule.levels.%s.%s: this alert has no such level: leave it out" $path $end) -}}
{{- end -}}
{{- $_ := set $rule "expr" (regexReplaceAll $level $rule.expr (printf ") %s %v" $sign (get $own $end))) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $own "for" -}}
{{- $_ := set $rule "for" $own.for -}}
{{- end -}}
{{- if not $own.disable -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- $groups = append $groups (set $group "rules" $rules) -}}
{{- end -}}
{{- range $alert, $severities := $levels -}}
{{- range $severity, $_ := $severities -}}
{{- if not (has (printf "%s.%s" $alert $severity) $known) -}}
{{- fail (printf "metrics.prometheusRule.levels.%s.%s: there is no such alert: docs/runbooks/README.md lists them" $alert $severity) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "groups" $groups | toYaml -}}
{{- end -}}
