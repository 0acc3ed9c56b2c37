// Package grafana holds two dashboards to be imported into Grafana, which asks for the Prometheus to read from: devmgrd.json has
// nodes in detail, and fleet.json all nodes together. There is no code in it. The expressions are read by Prometheus's own parser
// in test/tools/prometheus: make alerts.
package grafana
