// Package podresources tells who asks which pod has which devices, on the protocol of the kubelet's PodResources socket.
//
//	v1 List, Get, GetAllocatableResources   lister.go   as the kubelet answers them
//	v1alpha1 List                           alpha.go    the same
//	v1alpha1 PodResources                   alpha.go    the endpoint's first proposal: List and ListDevices
//	devmgrd.podresources.v1 Watch           watch.go    a snapshot, then every change
//
// One answer's way:
//
//	limits.go    each client has a rate of its own
//	kubelet.go   the kubelet is asked for what is its own: CPUs, memory, dynamic resources, devices of other managers
//	album.go     pods' entries as they are sent; most are as they were at the last question
//	merge.go     theirs and ours, pod by pod and container by container: pure
//
// # Whose word counts
//
// The kubelet's for which pods and containers there are, and for what is its own. Ours for the devices of every resource that
// a plugin has offered us or that somebody has from us: what the kubelet says of those is left out, since it can only be from
// before. Pods that only we have heard of are answered too. Without the kubelet devices are still answered; that it did not
// answer is logged once and counted.
//
// # Promises
//
//   - An answer is not older than its question: the kubelet is asked after the question came, and so is the board. Questions
//     that come at one time share one call to the kubelet, which allows a hundred a second to all of its clients together. A Get
//     asks the kubelet's Get while calls are few, so the kubelet's metrics show it.
//   - Get never gives a pod without the devices that it is to have: it waits for them, and if they do not come it fails, with the
//     reason why the pod waits. List waits for allocations in flight, shortly.
//   - A slow or noisy client harms itself alone. Who reads a watch too slowly is dropped with RESOURCE_EXHAUSTED, and may go on
//     where it was.
//   - Nothing here is needed for a container to start. A socket that cannot be had is tried again, and told.
//
// # Goroutines and locks
//
// Run owns all: gRPC's, the call to the kubelet that is in flight, one for each watcher's sending, and those of the take-over of
// the kubelet's path (takeover.go). No lock is held across a call.
package podresources
