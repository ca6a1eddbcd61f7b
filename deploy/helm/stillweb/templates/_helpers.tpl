{{- define "stillweb.labels" -}}
app.kubernetes.io/name: stillweb
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "stillweb.selector" -}}
app.kubernetes.io/name: stillweb
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Pod security level "restricted". */}}
{{- define "stillweb.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.runAsUser }}
  runAsGroup: {{ .Values.runAsUser }}
  fsGroup: {{ .Values.runAsUser }}
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "stillweb.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "stillweb.probes" -}}
startupProbe:
  httpGet: {path: /ready, port: control}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /ready, port: control}
  periodSeconds: 5
livenessProbe:
  httpGet: {path: /health, port: control}
  periodSeconds: 10
  failureThreshold: 3
{{- end }}

{{- define "stillweb.secret" -}}
{{ required "keys.existingSecret: name a Secret with clients, nodes and node" .Values.keys.existingSecret }}
{{- end }}
