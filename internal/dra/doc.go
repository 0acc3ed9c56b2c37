// Package dra offers the devices of unmodified device plugins through Dynamic Resource Allocation (DRA, KEP-4381): as devices of the
// DRA driver devmgrd.io, which the scheduler chooses for pods. Resources that dra.resources names are offered so, and not as a number in
// the Node's capacity. Pods ask for them with claims of their own, or with the plain resource if a DeviceClass names it
// (extendedResourceName, KEP-5004).
//
//	names.go       the devices' names in DRA: pure
//	slices.go      from the devices of a resource to the ResourceSlices that show them: pure
//	attributes.go  what the slices say of a device: NUMA node, PCI address, ...
//	offering.go    which resources are offered through claims
//	move.go        the move of a resource between the Node's numbers and ResourceSlices, with its times
//	class.go       the DeviceClass of a resource
//	publisher.go   writes the ResourceSlices of this node, and restores them when the kubelet removes them
//	store.go       the ResourceSlices of this node, as the API server has them
//	pace.go        when a ResourceSlice may be written
//	word.go        what a plugin says of its devices, and when the slices follow it
//	claims.go      the pods' claims: reads them
//	resolve.go     from a pod's claims to the devices that the scheduler has chosen: a demand for exactly these
//	index.go       the listed devices by pools and names, as claims name them
//	metadata.go    what workloads read of the devices of their claims
//	server.go      answers the kubelet: registration, preparation of claims
//	metrics.go     writes, and what the slices show
//	health.go      reports the devices' health to the kubelet
//
// The path of one pod:
//
//	scheduler    chooses devices from the slices, writes a claim, binds the pod
//	claims       reads the claim, and binds the pod in the allocator with a demand for these devices
//	allocator    holds them, asks the plugin, saves: as for any pod. A device that another pod still has is waited for
//	cdi          writes the file of each request: what a container gets, or a guard
//	server       answers the kubelet's NodePrepareResources once the pod has its devices, with the CDI devices of these files
//	nri          compares what the runtime has made of them with the plugin's grant, or injects that where there is a guard
//
// So the scheduler proposes and the state file decides: no claim can put a device into two hands, whatever the scheduler, the kubelet or
// an operator with a force deletion does (kubernetes/kubernetes issue 141471). NodeUnprepareResources always succeeds: devices are
// free when the allocator has proved that, not when the kubelet says so.
//
// Slices show all listed devices except those that pods without a claim have: static pods, and pods from before the resource was offered
// through DRA. Devices that no pod may be assigned have a taint with the effect NoSchedule. They never have NoExecute: the scheduler's eviction
// knows pods with claims of their own only (kubernetes/kubernetes issue 141290), and devmgrd evicts where its configuration says so.
//
// While a pod without a claim waits for any free device of a resource, the slices show no free device of it: the scheduler could choose the one that the pod
// is about to be assigned. The allocator says which devices these are (Claimable). A pod that is already bound may not be known for a moment, so
// the slices show no device before all pods are listed, and for ten seconds after the removal of the number: a scheduler that is behind still binds by it.
//
// # Pools
//
// A pool has at most 64 devices and exactly one ResourceSlice, so that a change of one device is one write: a pool's generation covers
// all of its slices. The API names a device by driver, pool and name, so a device must not change its pool while a claim may name it: it
// keeps its place, the number of its pool (place). Places other than 0 are in the state file before the slices show them.
//
// # Writing
//
// A watch of the slices and the View both signal that something has changed. The publisher then compares, writes what differs, and takes
// the answers for the newest state of the slices. A first change is written at once, and a pool that keeps changing once a second. What a plugin says of its
// devices is followed at a pace of its own for each resource (word.go): a plugin that changes its word all the time has all of its pools written once a
// minute. A slice
// that another client removes is created again at once, and again within a second if it is removed again: the kubelet removes all
// slices of its node when it starts, and those of a driver that has been away for 30 s.
//
// A slice is known by its pool, among those of this node. Its name is fixed, but another node's credentials may create a slice of that name: after 2 s the
// API server chooses another one. Of two slices of a pool one goes.
//
// It removes no slice before the View has counted all pods, since the View may lack resources at the start of devmgrd, and changes none of
// a resource whose plugin has not listed its devices yet. When it ends, the slices stay.
//
// An API server without the feature DRADeviceTaints drops taints. The publisher notices when it first writes one: for that moment the slice
// shows a device that no pod may be assigned. From then on such devices are left out, unless a pod with a claim has them.
package dra
