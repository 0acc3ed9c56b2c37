// Package preflight judges whether a node is ready for devmgrd. It returns findings with remedies. It is pure: the caller collects
// the facts.
//
//	facts.go      the facts
//	judge.go      the order of the checks; the daemon's own files and sockets
//	runtime.go    the container runtime, NRI, and cgroups
//	sizes.go      pods that the runtime cannot list to NRI plugins
//	cluster.go    the API server, the kubelet and its device manager
//
// A check FAILs if containers would not get their devices, or a promise would not hold. It warns of a problem that devmgrd can
// tolerate, or that only the operator can judge. Each finding other than ok has a remedy.
package preflight
