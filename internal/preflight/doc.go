// Package preflight judges whether a node is fit for devmgrd: what is wrong, what is worth knowing, and what to do about it. It is
// pure: who asks has looked, and gives the facts.
//
//	facts.go      what has been found
//	judge.go      the order of the checks; the daemon's own files and sockets
//	runtime.go    the container runtime, NRI, and cgroups
//	sizes.go      pods that the runtime cannot list to NRI plugins
//	cluster.go    the API server, the kubelet and its device manager
//
// A check FAILs if containers would not get their devices, or a promise would not hold. It warns of what devmgrd can live with, or
// where only whoever looks after the node can tell. Each finding that is not ok says what to do.
package preflight
