// Package chart tests the container image and the Helm chart on a node of test/cluster: devmgrd runs in the pod of the chart's DaemonSet, with
// the rights of its service account. packaging/helm compares what the chart makes by default with the shipped manifests.
//
// The image is built outside the namespaces, by make image.
package chart
