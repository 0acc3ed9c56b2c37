// Package helm holds devmgrd's Helm chart, in the directory devmgrd, and its tests. There is no code in it.
//
// The chart's files are links to the manifests, alerts and dashboards that the packages ship. The tests lint the chart, compare
// its objects with packaging/kubernetes, render it with each value, and validate the objects
// with the API types of each supported Kubernetes. With CHART=devmgrd-1.2.3.tgz they test that archive. test/chart installs it.
package helm
