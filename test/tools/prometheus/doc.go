// Package prometheus has the tests of packaging/prometheus and packaging/grafana that need Prometheus itself, and the version
// of it that promtool is built from. It is a module of its own, so that the product never requires a server.
//
// The expressions are read by Prometheus's own parser. What they name is looked up in devmgrd's source: a metric that was
// renamed, or has lost a label, is found before an operator misses an alert.
package prometheus
