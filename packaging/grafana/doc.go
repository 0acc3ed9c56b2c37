// Package grafana holds devmgrd.json, a dashboard to be imported into Grafana, which asks for the Prometheus to read from.
// There is no code in it. Its expressions are read by Prometheus's own parser in test/tools/prometheus: make alerts.
package grafana
