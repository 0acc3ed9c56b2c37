// Package preflight judges whether a node is fit for devmgrd, with a remedy for each problem. Gather collects facts and changes
// nothing; Judge is pure. The running daemon needs neither.
//
//	facts.go           the facts of a node
//	gather.go          where they come from: files, sockets, the daemon, the API server, the kubelet
//	cri.go             the runtime's name, version and settings, through the CRI, and its containers
//	containerd.go      containerd's configuration files
//	crio.go            CRI-O's configuration in force
//	kubeletconfig.go   the kubelet's configuration file
//	judge.go           the order of the checks; the daemon's own files and sockets
//	runtime.go         the container runtime, NRI, and cgroups
//	sizes.go           pods that the runtime cannot list to NRI plugins
//	claims.go          Dynamic Resource Allocation
//	cluster.go         the API server, the kubelet and its device manager
//
// A check FAILs if containers would not get their devices, or a promise would not hold. It warns of problems that devmgrd can work
// with, and of those that only the operator can judge. Each finding that is not ok has a remedy.
package preflight
