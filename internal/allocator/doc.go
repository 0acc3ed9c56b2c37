// Package allocator knows which container holds which devices.
//
// A device is free, held or assigned. It is held from the moment a plan sets it aside until the assignment is on disk
// or has failed; it is assigned until its pod is gone. No device is ever in the hands of two pods.
//
// One pod's way through:
//
//	Bind       the API has bound the pod to this node             pod.go
//	plan       choose for all of its containers, or say why not   plan.go     pure
//	hold       set the choice aside, under the lock               attempt.go
//	advice     ask the plugins which devices they prefer, without
//	           the lock; plan anew and hold that instead          advice.go, attempt.go
//	Allocate   ask the plugins, without the lock                  attempt.go
//	save       one durable commit for the whole pod               attempt.go
//	settle     now the assignment can be seen                     attempt.go
//	Claim      the runtime asks, and gets a look-up               standing.go
//	regrant    what was granted does not hold any more: ask again
//	           for the same devices, or plan again                regrant.go
//	Drop       the API wants the pod no more                      pod.go
//	release    once the runtime has none of its containers:
//	           first on disk, then in memory                      books.go
//
// A plan goes through the pod's containers in order and takes from one shelf per resource (shelf.go): what is certain, what
// init containers hand on, what is free. Which NUMA nodes to take it from is a bounded search over counts (topology.go).
// Strict policies try one set of nodes after the other, until all containers have theirs.
//
// What is true, and what follows from it: the offers (from the plugins), the demands (from the API), the holds and the
// assignments (our own, as they are on disk) and the running containers (from the runtime) are the truth. A pool is an
// index over them, which makes an allocation cost the same however many devices and pods there are; checkInvariants
// compares it with the truth after each test.
//
// Nothing is given out before the runtime has listed its containers once: the state file may be lost, or a copy from yesterday.
// The planning loop compares each list with the state file, and what the runtime reports meanwhile waits in line behind it. What
// containers have by their stamps and not by the state file is set aside for their pods (runtime.go).
//
// A pod's devices are released when the pod has left the API, the runtime has no container of it, and the host shows no
// process of it (prove in audit.go, due in writer.go).
//
// Order: a pod that cannot have its devices waits with a reason and is planned again when something that matters to it
// changes, oldest first; one that fits is never held up by one that does not. A plugin's failure is tried again after a
// pause that doubles up to half a minute. Nothing polls, but for the end of processes that outlive their pod.
//
// Locks and goroutines: one mutex guards all state and is held for look-ups and plans only, never across a plugin's
// call or a commit. Log lines are said under it: the daemon's log blocks nobody. Run owns all goroutines: the loop that
// plans, the one that keeps the state file (writer.go), and one for each pod whose plugins are being asked. A constructor
// starts none.
//
// What it does not do: talk to plugins, files, the API server or the runtime. It asks for these through the small
// interfaces it declares.
package allocator
