// Package allocator decides which container has which devices.
//
// A device is free, held or assigned. It is held from the moment a plan chooses it until the assignment is durable, or the attempt has
// failed and the state file cannot have it. It is assigned until it is proved free and the state file has forgotten the pod. No device is held by or assigned to two pods, unless both have it by one ResourceClaim
// (sharing.go).
//
// The path of one pod:
//
//	Bind            the API server has bound the pod to this node           pod.go
//	plan            choose devices for all containers, or name the reason   package placement, pure
//	hold            reserve the choice, under the lock                      attempt.go
//	preference      ask the plugins which devices they prefer, without
//	                the lock; plan again and hold the result instead        preference.go, attempt.go
//	Allocate        call the plugins, without the lock                      attempt.go
//	save            one durable commit for the whole pod                    attempt.go
//	succeed         make the assignment visible                             attempt.go
//	RuntimeCreating answer the container runtime with a look-up             readiness.go
//	regrant         a grant no longer holds: call Allocate again for the
//	                same devices, or plan again                             regrant.go
//	Drop            the pod has ended or is gone from the API server        pod.go
//	release         when the devices are proved free: first on disk, then
//	                in memory                                               departure.go, writer.go
//
// The life cycle of a pod:
//
//	phase       in the API   devices                    next
//	absent      no           none                       → queued, waiting, settled
//	queued      yes          those it has               → allocating, waiting, settled, ended, absent
//	allocating  yes          also those held            → queued, waiting, settled, abandoned
//	waiting     yes          those it has               → queued, settled, ended, absent
//	settled     yes          all it requests            → queued, waiting, ended, absent
//	abandoned   no           also those held            → allocating, ended, absent
//	ended       no           those it had               → queued, waiting, settled, forgetting
//	forgetting  no           until the commit           → returned, ended, absent
//	returned    yes          until the commit           → queued, waiting, settled, forgetting
//
// A queued pod is planned next. One that is allocating has its plugins asked or its idle containers examined, and is abandoned if it ends meanwhile. A waiting
// pod has a reason. An ended pod is forgotten by a commit once its devices may be released; it returns if it is back in the API
// during the commit. lifecycle.go has this table and the one function that changes phases.
//
// The truth is: offers (from the plugins), demands (from the API server), holds and assignments (on disk), and running
// containers (from the runtime). The ledger (package ledger) is an index over them, so that the
// cost of an allocation does not depend on the number of devices and pods; CheckInvariants compares the index with the truth
// after each test.
//
// Nothing is allocated before the runtime has listed its containers once, because the state file may be lost or an old
// copy. The planning loop compares each list with the state file, and applies later reports of the runtime after it. Devices
// that a container has by its annotation, that its pod requests, and that the state file does not assign, are quarantined for its pod (package ledger). A resource of which pods
// have devices by the kubelet's device manager stays with the kubelet until they have left (kubelet.go).
//
// A pod's devices are released when the pod has ended or left the API server, is quiet as far as the runtime, and its cgroup where that counts, say, and the
// Releaser has proved what else is required: departure.go has the stages of that.
//
// A pod that cannot have its devices waits with a reason, and is planned again when something that concerns it changes,
// oldest first. A pod that fits does not wait for an older one that does not. A failed call of a plugin is retried after a
// pause that doubles up to 30 s, with the grants that the failed attempt has brought (kept.go).
//
// A static pod is bound by each report of the runtime that shows a sandbox of it, and dropped when the last sandbox of its UID has stopped. It keeps its devices for
// 10 s more, in which the kubelet creates the next sandbox, and is dropped after 10 min without a container, because a restarted runtime does not report
// former sandboxes' ends. The API server's lists do not affect static pods, nor the runtime's lists other pods. No pod of the API server overrides what the runtime
// has reported of a static pod.
//
// The capacity that the Node shows counts no devices of static pods that no mirror pod requests (mirrors.go).
//
// Readers see immutable values (view.go): Snapshot has all pods with their states, Resources has all resources with their numbers.
//
// One mutex guards all state. It is held for look-ups and plans, and never across a plugin's call or a commit. Logging
// under it is safe because the log writer never blocks. Run owns all goroutines: the planning loop, the writer (writer.go), and
// one for each pod whose plugins are being called or whose idle containers are examined, and for each PreStartContainer. New starts none.
//
// The other files:
//
//	allocator.go   the interfaces that the package calls, and the planning loop
//	lock.go        the mutex, for which a hook waits no longer than it has time
//	runtime.go     the runtime's reports of its containers
//	starts.go      which containers start without waiting for the mutex
//	stamps.go      what containers say they have
//	recall.go      pods from the state file, at the start
//	leaving.go     pods of which the kubelet starts no further container
//	audit.go       containers that run without the devices that they request
//	prepare.go     PreStartContainer, ahead of each start
//	refused.go     containers that have devices and cannot start with them
//	giveup.go      pods that have waited for too long
//	failures.go    devices in use that have failed
//	health.go      what is wrong with a pod's devices
//	flapping.go    suspends devices that fail again and again
//	cordon.go      cordons, of operators and of the Node's annotation
//	forget.go      drops a resource
//	metrics.go     the metrics
//
// The package does not talk to plugins, files, the API server or the runtime: it declares small interfaces for them.
package allocator
