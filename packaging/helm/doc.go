// Package helm holds devmgrd's Helm chart, in the directory devmgrd, and its tests. There is no code in it.
//
// The chart's files are links to the manifests, alerts and dashboards that the packages ship. The tests lint the chart, hold
// what it makes with default values against packaging/kubernetes, and render it with each value. test/chart installs it.
package helm
