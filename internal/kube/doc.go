// Package kube connects to the API server.
//
// It owns the credentials, the client, and the life of a watch: list, watch, reconnect. A Watch is up to date within five seconds of
// the API server's return, and within one after a short absence. Meanwhile it pauses between attempts, does not log each one, and Check
// returns the reason.
//
// Load finds the credentials, NewClient makes one client of core/v1 for all packages, NewResourceClient one of resource.k8s.io/v1 for claims, and each package that watches objects runs a Watch with a
// store of its own. Objects are the newest versions of what such a store holds.
//
// Rights and ClaimRights make all requests of devmgrd once, for devmgrd check. A ServerVersion asks the API server once which release it is and what that
// release lacks.
//
// The package keeps no objects. A client knows one group of the API: a clientset with dozens of API groups would cost tens of megabytes of
// resident memory on every node.
package kube
