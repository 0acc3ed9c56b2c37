// Package kube is the way to the API server.
//
// It owns the credentials, the client, and the upkeep of a watch: list, follow, lose, come back. It promises that a
// Watch is in step with the API server again soon after its return (a second after a short absence, five at most),
// that it neither spins nor logs per attempt while it is away, and that Check tells at any moment whether what it
// last passed on is current.
//
// The order of events: Load finds the credentials, NewClient makes one client that all rooms share, and each room
// that follows something runs a Watch with a store of its own.
//
// It keeps no object and knows none but as something to decode. The client knows core/v1 only: a clientset, with its
// dozens of API groups, costs tens of megabytes of resident memory in a daemon that runs on every node.
package kube
