// Package nodestatus publishes the number of devices for the scheduler, as capacity and allocatable of the Node object, and for
// operators two conditions. It also reads the cordons that operators declare in the Node's annotation.
//
// It owns the quantities of the View's resources, and no others. The stabilizers delay falls of the View's capacity. What they let pass is
// on the Node within about a second, also after another writer's change. The publisher patches only differences.
//
// A rise of the View's capacity is published at once. Two falls are certain, and wait for no window: cordoned, suspended and refused devices that no pod has, and a resource whose plugin
// has been away for longer than the grace period. Any other fall is published when it has lasted for the stabilization window of
// 5 s, and two falls of one resource are at least 10 s apart. A capacity that wavers falls to the highest value of the
// window. A fall that a rise reverts lengthens the window to more than the fall has lasted, up to 3 min, until the resource
// has not risen for 10 min; a capacity that wavers all the time falls after two windows. So a device that flaps, or a plugin whose first list is empty, does not change the Node. If the
// Node shows too much meanwhile, a pod that is bound for it waits. The window begins at the start of devmgrd, if the Node
// shows more than the View. Only the View's capacity is stabilized: another writer's value is replaced at once.
//
// For 30 s after an outage of the API server, a value that the Node shows does not fall, and rises only as far as pods are bound. The
// kubelet's watch of pods may be back before its watch of the Node: it would fail a pod (OutOf...) that the scheduler has bound by a value
// which the kubelet has not seen yet. A resource that the Node does not show appears at once: the kubelet does not check it. A devmgrd that
// has just started does not know whether the API server was away a moment ago. So for its first 30 s it raises a value that the Node shows only so
// far, too, except for zero.
//
// Until the View has counted every pod that is bound to the node, its capacity may be too low, and a kubelet that starts
// with less capacity than pods ask for fails those pods. So the publisher lowers nothing before: the larger one of the
// View's and the Node's value counts. Until all pods are listed, bound pods do not raise a value in the 30 s after an
// outage: some that the state file names may have ended, and the scheduler would bind others in their place.
//
// Capacity and allocatable are always equal, and change in one patch. A kubelet sets allocatable to capacity for every
// resource that it does not manage, and deletes an allocatable without capacity: with two values, or two patches, the
// kubelet would find something to correct. The kubelet patches only what it believes to change, so it never touches an equal
// pair.
//
// A number is not lowered in one step (of an unequal pair, allocatable counts): the publisher removes the resource from the Node for a second, and then shows the
// lower value. The scheduler may have bound a pod by the old value a moment ago, and a kubelet that finds the lower one
// fails that pod (OutOf...). A kubelet does not check a resource that the Node does not show, and the scheduler binds no pod
// by it. The value after that second counts the pods that were bound meanwhile. When the publisher ends, it cuts that second
// short.
//
// # The order of events
//
//	publisher.go    asks the View and the Node, writes patches, waits for changes
//	decide.go       what the Node shows next: pure, in the order overwritten, differences, steps
//	number.go       the number of one resource, as a formula: pure
//	stabilizer.go   when a fall counts: pure
//	peaks.go        what pods that are bound may hold up: pure
//	kubelet.go      what the kubelet's own device manager has: none of it is free
//	contention.go   how often another writer has changed a value
//	judge.go        the conditions, from devices and components: pure
//	conditions.go   when a condition is written: pure; and the patches
//	cordons.go      the Node's annotation
//	offered.go      the way to ResourceSlices and back: the Node's part of internal/dra/move.go
//	store.go        the newest state of the Node, from the watch and from patches
//	convert.go      the Node object into that state, and quantities into a patch: pure
//	metrics.go      patches, and what the Node shows
//
// A watch of the Node and the View both signal that something has changed. The publisher then decides, sends the patch, takes the
// answer for the newest state of the Node, and decides again. The decider remembers devmgrd's own patches, the withdrawn resources
// and a stabilizer for each resource. A change by another writer counts when the Node shows another value than the last patch, be it
// more, less or none. An event of the watch may be older than the answer to a patch; the publisher ignores such an event,
// because it would patch once more for each event on its way. It always believes a full list: a stale one costs at most a
// patch that changes nothing.
//
// # Limits of the package
//
// It never writes zero because it ends: a restarting kubelet would fail the pods that hold devices. It creates no Node. It
// polls the components every 10 s, the kubelet's file every 5 s while the kubelet has a resource, and while a resource leaves the ResourceSlices these every 200 ms. It removes a resource for longer than that second only after it is forgotten (Retired), by "devmgrd forget" or for another resource, once: if another
// writer puts the resource back, it stays. And it removes what is offered through claims (Claimed), once slices can be written (Slices.Writable), and
// each time that another writer puts it back.
package nodestatus
