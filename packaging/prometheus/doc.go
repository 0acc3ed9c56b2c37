// Package prometheus holds the alerts that devmgrd comes with. There is no code in it.
//
// alerts.yaml is for Prometheus. alerts_test.yaml is what each alert promises, and is played by promtool: make alerts. The
// tests here hold the alerts, what is tested of them and docs/runbook.md together; that what they name is there, in
// devmgrd's own source, is found by Prometheus's parser in test/tools/prometheus.
package prometheus
