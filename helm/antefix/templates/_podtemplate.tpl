{{/* Settings of the values that are added to a pod of the chart. */}}

{{/* A pod template as YAML: `template`, also YAML, with the settings of its section of the values, and
     their podTemplate merged over it. Takes (dict "template" ... "settings" ...). */}}
{{- define "antefix.customised" -}}
{{- $settings := .settings -}}
{{- $pod := fromYaml .template -}}
{{- /* init containers too: the download of weights needs the same proxy, mirror and certificates */ -}}
{{- $each := pick $settings "env" "envFrom" "volumeMounts" -}}
{{- $own := merge (pick $settings "livenessProbe" "readinessProbe") $each -}}
{{- range $kind, $added := dict "containers" $own "initContainers" $each -}}
{{- $containers := list -}}
{{- range index $pod.spec $kind -}}
{{- $merged := include "antefix.merged" (dict "below" . "above" (include "antefix.given" $added | fromJson)) -}}
{{- $containers = append $containers ($merged | fromJson) -}}
{{- end -}}
{{- if $containers -}}
{{- $_ := set $pod.spec $kind $containers -}}
{{- end -}}
{{- end -}}
{{- $named := pick $settings "priorityClassName" "schedulerName" "topologySpreadConstraints" "volumes" -}}
{{- $patch := dict
  "metadata" (dict "labels" ($settings.podLabels | default dict))
  "spec" (include "antefix.given" $named | fromJson)
-}}
{{- range list $patch ($settings.podTemplate | default dict) -}}
{{- $pod = include "antefix.merged" (dict "below" $pod "above" .) | fromJson -}}
{{- end -}}
{{- range concat $pod.spec.containers ($pod.spec.initContainers | default list) -}}
{{- $_ := set . "resources" (include "antefix.quantities" (.resources | default dict) | fromYaml) -}}
{{- end -}}
{{- /* in the form in which KubeRay writes them back (_quantities.tpl) */ -}}
{{- range $pod.spec.volumes -}}
{{- with dig "ephemeral" "volumeClaimTemplate" dict . -}}
{{- $_ := set . "metadata" (.metadata | default dict) -}}
{{- $_ := set .spec "resources" (include "antefix.quantities" (.spec.resources | default dict) | fromYaml) -}}
{{- end -}}
{{- if dig "emptyDir" "sizeLimit" "" . -}}
{{- $_ := set .emptyDir "sizeLimit" (include "antefix.quantity" .emptyDir.sizeLimit) -}}
{{- end -}}
{{- end -}}
{{- toYaml $pod -}}
{{- end -}}

{{/* A dict without its empty values, as JSON. */}}
{{- define "antefix.given" -}}
{{- $given := dict -}}
{{- range $key, $value := . -}}
{{- if $value -}}
{{- $_ := set $given $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $given -}}
{{- end -}}

{{/* Merge two dicts, as JSON: mappings are merged, a null removes a key, other values replace, except
     lists whose items have a mountPath or a name. Takes (dict "below" ... "above" ...). */}}
{{- define "antefix.merged" -}}
{{- $result := deepCopy .below -}}
{{- range $key, $value := .above -}}
{{- $there := get $.below $key -}}
{{- $two := dict "below" $there "above" $value "items" $key -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $result $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" $there) -}}
{{- $_ := set $result $key (include "antefix.merged" $two | fromJson) -}}
{{- else if and (kindIs "slice" $value) (kindIs "slice" $there) -}}
{{- $_ := set $result $key (include "antefix.mergedLists" $two | fromJsonArray) -}}
{{- else -}}
{{- $_ := set $result $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $result -}}
{{- end -}}

{{/* antefix.merged for lists, with the key "items": an item replaces the one with the same mountPath, or
     otherwise the same name. If there is none, it is appended. Containers are merged with that one. A list of
     other items replaces the whole list. */}}
{{- define "antefix.mergedLists" -}}
{{- $by := "" -}}
{{- range $key := list "name" "mountPath" -}}
{{- $all := true -}}
{{- range $.above -}}
{{- if not (and (kindIs "map" .) (hasKey (kindIs "map" . | ternary . dict) $key)) -}}
{{- $all = false -}}
{{- end -}}
{{- end -}}
{{- if $all -}}
{{- $by = $key -}}
{{- end -}}
{{- end -}}
{{- $result := .above -}}
{{- if $by -}}
{{- $own := dict -}}
{{- range .above -}}
{{- $_ := set $own (get . $by) . -}}
{{- end -}}
{{- $result = list -}}
{{- $taken := list -}}
{{- range .below -}}
{{- $name := get . $by -}}
{{- $taken = append $taken $name -}}
{{- $item := get $own $name | default . -}}
{{- if has $.items (list "containers" "initContainers") -}}
{{- $item = include "antefix.merged" (dict "below" . "above" $item) | fromJson -}}
{{- end -}}
{{- $result = append $result $item -}}
{{- end -}}
{{- range .above -}}
{{- if not (has (get . $by) $taken) -}}
{{- $result = append $result . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $result -}}
{{- end -}}
