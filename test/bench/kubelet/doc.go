// Package kubelet compares devmgrd with the kubelet's own device manager and PodResources server: real code on both sides, real
// sockets and files, the same content, in one run. It is a module of its own so that the kubelet never reaches the product's
// go.mod.
//
//	BenchmarkAllocate
//	                a pod's way to its device, at several sizes of node; what is written for it, and the memory; and how
//	                long after a restart all devices are there again
//	BenchmarkList   one List, at two sizes of node: how long it takes, and what the server allocates for it; and of clients
//	                that ask at one moment, how long each waits, and how many are refused
//	BenchmarkNUMA   how many pods have their CPUs near their devices, of 500 that come and go: devmgrd with a CPU policy, and the
//	                kubelet's topology, CPU, memory and device managers
//	BenchmarkWatch  a thousand changes, from the moment of each to its receipt; it fails if one is lost or out of order
//
// The floor of PodResources is a gRPC server that has the bytes of its answer ready: what it takes is gRPC's own.
package kubelet
