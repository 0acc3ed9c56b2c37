// Package podresources reports the devices of each pod, over the protocol of the kubelet's PodResources socket.
//
//	v1 List, Get, GetAllocatableResources   lister.go   as the kubelet answers them
//	v1alpha1 List                           alpha.go    the same
//	v1alpha1 PodResources                   alpha.go    the endpoint's first proposal: List and ListDevices
//	devmgrd.podresources.v1 Watch           watch.go    a snapshot, then every change
//
// The steps of one answer:
//
//	limits.go      each client has its own rate
//	kubelet.go     calls the kubelet for its own resources: CPUs, memory, dynamic resources, devices of other managers
//	entrycache.go  pods' entries as sent; most are unchanged since the last call
//	merge.go       merges the kubelet's and devmgrd's entries, pod by pod and container by container: pure
//
// # Sources
//
// The kubelet decides which pods and containers exist, and reports its own resources. devmgrd reports the devices of every
// resource that a plugin has registered with it or that a container has from it. It omits the kubelet's entries for these
// resources, which can only be outdated. Answers include pods that only devmgrd knows. Without the kubelet, answers still
// have devices; the failure is logged once and counted.
//
// # Promises
//
//   - An answer is not older than its request: the kubelet and the allocator are read after the request arrives. Concurrent
//     requests share one call to the kubelet, which allows a hundred a second to all its clients together. While calls are
//     few, Get calls the kubelet's Get, so the kubelet's metrics show it.
//   - Get never returns a pod without its requested devices: it waits for them, or fails with the reason why the pod waits. List
//     waits shortly for allocations in flight.
//   - A slow or noisy client harms only itself. A slow reader of a watch is dropped with RESOURCE_EXHAUSTED, and may resume.
//   - No container needs this package to start. Run tries an unavailable socket again, and logs the error.
//
// # Goroutines and locks
//
// Run owns all goroutines: gRPC's, the call to the kubelet, one sender for each watcher, and those of the takeover of the
// kubelet's path (takeover.go). No lock is held across a call.
package podresources
