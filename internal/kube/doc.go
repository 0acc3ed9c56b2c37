// Package kube connects devmgrd to the API server.
//
// It owns the credentials, the client, and the maintenance of a watch: list, watch, reconnect. It promises that a Watch
// is up to date soon after the API server returns (a second after a short absence, five at most), that it neither spins
// nor logs each attempt meanwhile, and that Check reports at any moment whether its objects are current.
//
// Load finds the credentials, NewClient returns one client for all packages, and each package that watches objects runs a
// Watch with its own store.
//
// The package stores no objects. The client knows core/v1 only: a clientset, with its
// dozens of API groups, costs tens of megabytes of resident memory in a daemon that runs on every node.
package kube
