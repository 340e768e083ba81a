{{- define "holdfast.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "holdfast.labels" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The labels that select the pods of a component: (list $ "master"). */}}
{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "holdfast.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What all pods have in common. */}}
{{- define "holdfast.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* One pod of a component on a node, where there are enough nodes: (list $ "master"). */}}
{{- define "holdfast.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "holdfast.selector" . | nindent 8 }}
{{- end }}

{{- define "holdfast.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* host:port of each node of an etcd: (list $ "etcd" .Values.etcd 2379). */}}
{{- define "holdfast.etcdHosts" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $port := index . 3 -}}
{{- $name := printf "%s-%s" (include "holdfast.name" $root) $component -}}
{{- range $n := until (int (index . 2).replicas) }}{{ if $n }},{{ end }}{{ $name }}-{{ $n }}.{{ $name }}.{{ $root.Release.Namespace }}.svc:{{ $port }}{{ end }}
{{- end }}

{{/* The masters' address for clients. */}}
{{- define "holdfast.master" -}}
etcd://{{ include "holdfast.etcdHosts" (list . "mooncake-etcd" .Values.mooncakeEtcd 2379) | replace "," ";" }}
{{- end }}

{{/* The masters' HTTP addresses, with commas between them. */}}
{{- define "holdfast.admin" -}}
{{- $name := printf "%s-master" (include "holdfast.name" .) -}}
{{- range $n := until (int .Values.master.replicas) }}{{ if $n }},{{ end }}http://{{ $name }}-{{ $n }}.{{ $name }}.{{ $.Release.Namespace }}.svc:9003{{ end }}
{{- end }}

{{/* The nodes of the index, with commas between them. */}}
{{- define "holdfast.etcd" -}}
https://{{ include "holdfast.etcdHosts" (list . "etcd" .Values.etcd 2379) | replace "," ",https://" }}
{{- end }}
