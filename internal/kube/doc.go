// Package kube connects to the API server.
//
// It owns the credentials, the client, and the upkeep of a watch: list, follow, reconnect. A Watch is in step with the API server
// soon after the API server returns (a second after a short absence, at most five). While the API server is away, a Watch neither
// spins nor logs each attempt, and Check reports at any moment whether the Watch is current.
//
// The order of events: Load finds the credentials, NewClient makes one client that all packages share, and each package
// that follows objects runs a Watch with a store of its own.
//
// It keeps no object. The client knows core/v1 only: a clientset, with its
// dozens of API groups, costs tens of megabytes of resident memory in a daemon that runs on every node.
package kube
