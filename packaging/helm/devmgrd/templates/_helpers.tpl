{{- define "devmgrd.name" -}}
{{- if contains "devmgrd" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-devmgrd" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "devmgrd.selector" -}}
app.kubernetes.io/name: devmgrd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "devmgrd.labels" -}}
{{ include "devmgrd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "devmgrd.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else -}}
{{- ternary (include "devmgrd.name" .) "default" .Values.serviceAccount.create -}}
{{- end -}}
{{- end -}}

{{- define "devmgrd.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default (printf "v%s" .Chart.AppVersion)) -}}
{{- end -}}
{{- end -}}

{{- /* The directories and addresses that devmgrd's configuration may move, with its defaults. */ -}}
{{- define "devmgrd.paths" -}}
{{- $config := .Values.config -}}
stateDir: {{ dig "stateDir" "/var/lib/devmgrd" $config }}
runDir: {{ dig "runDir" "/run/devmgrd" $config }}
kubeletDir: {{ dig "plugins" "kubeletDir" "/var/lib/kubelet/device-plugins" $config }}
kubeletRoot: {{ dig "plugins" "kubeletDir" "/var/lib/kubelet/device-plugins" $config | dir }}
podResources: {{ dig "podResources" "kubeletSocket" "/var/lib/kubelet/pod-resources/kubelet.sock" $config | dir }}
nri: {{ dig "nri" "socket" "/var/run/nri/nri.sock" $config | dir }}
adminSocket: {{ dig "admin" "socket" (printf "%s/admin.sock" (dig "runDir" "/run/devmgrd" $config)) $config }}
{{- end -}}

{{- /* The host and the port of metrics.listen, which extraEnv may set. Nothing if devmgrd does not listen on TCP. */ -}}
{{- define "devmgrd.listen" -}}
{{- $listen := dig "metrics" "listen" "127.0.0.1:9464" .Values.config -}}
{{- range .Values.extraEnv -}}
{{- if and (eq .name "DEVMGRD_METRICS_LISTEN") .value -}}
{{- $listen = .value -}}
{{- end -}}
{{- end -}}
{{- if and $listen (not (hasPrefix "unix:" $listen)) -}}
{{- $host := regexReplaceAll ":[0-9]+$" $listen "" | trimPrefix "[" | trimSuffix "]" -}}
host: {{ $host | quote }}
port: {{ regexFind "[0-9]+$" $listen }}
{{- end -}}
{{- end -}}
