{{- define "tensorhold.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "tensorhold.labels" -}}
app.kubernetes.io/name: tensorhold
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The labels that select the pods of a component: (list $ "master"). */}}
{{- define "tensorhold.selector" -}}
app.kubernetes.io/name: tensorhold
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "tensorhold.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What all pods have in common. */}}
{{- define "tensorhold.pod" -}}
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
{{- define "tensorhold.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "tensorhold.selector" . | nindent 8 }}
{{- end }}

{{- define "tensorhold.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* host:port of each node of an etcd: (list $ "etcd" .Values.etcd 2379). */}}
{{- define "tensorhold.etcdHosts" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $port := index . 3 -}}
{{- $name := printf "%s-%s" (include "tensorhold.name" $root) $component -}}
{{- range $n := until (int (index . 2).replicas) }}{{ if $n }},{{ end }}{{ $name }}-{{ $n }}.{{ $name }}.{{ $root.Release.Namespace }}.svc:{{ $port }}{{ end }}
{{- end }}

{{/* The masters' address for clients. */}}
{{- define "tensorhold.master" -}}
etcd://{{ include "tensorhold.etcdHosts" (list . "mooncake-etcd" .Values.mooncakeEtcd 2379) | replace "," ";" }}
{{- end }}

{{/* The masters' HTTP addresses, with commas between them. */}}
{{- define "tensorhold.admin" -}}
{{- $name := printf "%s-master" (include "tensorhold.name" .) -}}
{{- range $n := until (int .Values.master.replicas) }}{{ if $n }},{{ end }}http://{{ $name }}-{{ $n }}.{{ $name }}.{{ $.Release.Namespace }}.svc:9003{{ end }}
{{- end }}

{{/* The nodes of the index, with commas between them. */}}
{{- define "tensorhold.etcd" -}}
https://{{ include "tensorhold.etcdHosts" (list . "etcd" .Values.etcd 2379) | replace "," ",https://" }}
{{- end }}
