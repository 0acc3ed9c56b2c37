// Package allocator assigns devices to containers and records which container holds which devices.
//
// A device is free, held or assigned. A plan holds a device until the assignment is on disk or has failed. An assigned
// device stays assigned until its pod is released. No two pods have the same device.
//
// The stages of a pod:
//
//	Bind       the API server has bound the pod to this node         pod.go
//	plan       choose devices for all containers, or refuse          plan.go     pure
//	hold       reserve the chosen devices, under the lock            attempt.go
//	prefer     ask the plugins which devices they prefer, without
//	           the lock; plan again and hold the new choice          preference.go, attempt.go
//	Allocate   ask the plugins, without the lock                     attempt.go
//	save       one durable commit for the whole pod                  attempt.go
//	settle     publish the assignment                                attempt.go
//	Claim      answer the container runtime with a look-up           readiness.go
//	regrant    replace a grant that no longer holds: ask again
//	           for the same devices, or plan again                   regrant.go
//	Drop       the pod has ended or left the API server              pod.go
//	release    when the container runtime has no container of the
//	           pod: first on disk, then in memory                    writer.go
//
// A plan handles the pod's containers in order and takes devices from one draft per resource (draft.go): first devices
// that are already certain, then devices of init containers, then free devices. A bounded search over counts chooses the
// NUMA nodes (topology.go). Strict policies try one set of nodes after another until every container has its devices.
//
// The sources of truth are the offers (from the plugins), the demands (from the API server), the holds and assignments
// (devmgrd's own, as on disk) and the running containers (from the container runtime). A pool is an index over these sources.
// The index keeps the cost of an allocation independent of the number of devices and pods. CheckInvariants compares the
// index with the sources after each test.
//
// The allocator assigns no device before the container runtime has listed its containers once, because the state file may be
// lost or outdated. The planning loop compares each list with the state file; later reports of the runtime wait until the
// comparison is done. Devices that only a container's stamp names are set aside for the container's pod (runtime.go).
//
// A pod's devices are released when the pod has left the API server, the runtime has no container of the pod, and the host
// shows no process of the pod (prove in audit.go, due in writer.go).
//
// Order: a pod that cannot have its devices waits with a reason. A change that may matter to the pod plans it again, oldest
// pod first. A pod that fits never waits for one that does not. After a plugin failure the pause before the next
// attempt doubles up to half a minute. Nothing polls, except for the end of processes that outlive their pod.
//
// Locks and goroutines: one mutex guards all state. It is held for look-ups and plans, never across a plugin call or a
// commit. Log calls under the mutex are safe because devmgrd's log never blocks. Run owns all goroutines: the planning loop,
// the state file's writer (writer.go), and one goroutine for each pod whose plugins are being asked. Constructors start none.
//
// The package does not talk to plugins, files, the API server or the container runtime. It reaches them through the small
// interfaces that it declares.
package allocator
