// Package podresources serves the kubelet's PodResources API with the devices that devmgrd assigns.
//
//	v1 List, Get, GetAllocatableResources   lister.go   as the kubelet answers them
//	v1alpha1 List                           lister.go   the same
//	v1alpha1 PodResources                   lister.go   the endpoint's first proposal: List and ListDevices
//	devmgrd.podresources.v1 Watch           watch.go    a snapshot, then every change
//
// The files:
//
//	limits.go      each client has a rate of its own
//	unread.go      answers that no client has read yet, their sum, and turns for new ones
//	kubelet.go     ask the kubelet for CPUs, memory, dynamic resources, and devices of other managers
//	convert.go     a pod's entry in each version of the API: pure
//	ask.go         how many devices the kubelet's own device manager has, for "devmgrd check"
//	server.go      the sockets
//	metrics.go     requests and refusals
//	merge.go       the kubelet's entries and devmgrd's, pod by pod and container by container: pure
//
// # Which answer counts
//
// The kubelet's, for the list of pods and containers and for its own resources. devmgrd's, for each resource that a plugin offers
// to devmgrd or that devmgrd has assigned: the kubelet's entries for those are left out, since they can only be old. Pods that
// only devmgrd knows are in the answer too. Fields that only a newer kubelet has pass, since its entries are copied and not made
// again. If the kubelet does not answer, devices are still served; that is logged once and
// counted.
//
// # Promises
//
//   - An answer is not older than its request: the server reads the kubelet and the snapshot after the request. Requests at the
//     same time share one call to the kubelet, which allows a hundred a second for all of its clients. A Get calls the
//     kubelet's Get while calls are few, so that the kubelet's metrics count it.
//   - Get waits for the devices that a pod asks for (a static pod by its annotation: from its sandbox on), and fails with the pod's reason if they do
//     not come. List waits shortly for allocations in progress.
//   - A slow or busy client slows down itself alone. The next answer for a client is built when the client has read most of the ones
//     before, and a connection whose client reads nothing is closed. A client that reads a watch too slowly is dropped with RESOURCE_EXHAUSTED,
//     and may continue at its revision.
//   - No container needs this server to start. A socket that cannot be bound is retried and logged.
//
// # Goroutines and locks
//
// Run owns all goroutines: gRPC's, one for each path (of which one takes over the kubelet's: internal/podresources/internal/takeover), one
// for each kind of call to the kubelet, and one for each client of a watch. No lock is held across a call.
package podresources
