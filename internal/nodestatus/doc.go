// Package nodestatus publishes the node's devices to the scheduler: in the capacity and allocatable of devmgrd's own Node
// object.
//
// It owns these values for the resources of its View and for no other. The Node shows the stabilized values of the View
// within about a second, also after another writer's change. The package writes only when the values differ.
//
// A rise of the View's value is published at once. A fall is published when it has lasted for the stabilization window of
// 5 s, and two falls of one resource are at least 10 s apart. A wavering value falls to the highest of the window. A rise that
// reverts a fall lengthens the window to more than the fall has lasted, up to 3 min, until the resource has not risen for
// 10 min. So a device that flaps, or a plugin whose first list is empty, does not change the Node. If the Node shows too many
// devices meanwhile, a pod bound for one of them waits. If the Node shows more than the View wants when devmgrd starts, the
// window begins then. Only the View's values are stabilized: another writer's value is replaced at once.
//
// Until the View has counted every pod bound to the node its values may be too low, and a kubelet that starts with a value
// below the pods' requests fails those pods. So the package lowers no value before: the larger of the View's and the Node's
// counts.
//
// Capacity and allocatable are always equal, and change in one patch. A kubelet on the same node sets allocatable to
// capacity for every resource that it does not manage itself, and deletes an allocatable that has no capacity. With two
// different values, or two patches, the kubelet would correct them. The kubelet patches only what it believes to change, so
// an equal pair stays unchanged.
//
// A value is not lowered in one step. The package removes the resource from the Node for a second, and then publishes the
// lower value. The scheduler may have just bound a pod by the old value, and a kubelet that finds the lower one fails that pod
// permanently (OutOf...). The kubelet does not check a resource that the Node does not show, and the scheduler binds no pod to
// it. The value published afterwards counts the pods that have arrived meanwhile. When devmgrd stops, that second is cut short.
//
// # The order of events
//
// A watch on the Node and the View both signal changes. After either signal the publisher compares the Node with the
// wanted state, writes the differences, uses the answer as the newest state, and compares again. Between two rounds it
// keeps the newest state of the Node, the values of its own patches, the resources that it has removed, a stabilizer for each
// resource, and the number of changes by other writers. It counts such a change when the Node shows anything other than the
// last patch, be it more, less or nothing. The watch may deliver a state older than the answer to the publisher's own patch;
// the publisher ignores that state, because otherwise it would patch once more for each event in transit. A full list is
// always believed: at worst a stale list costs a patch that changes nothing.
//
// # Limits
//
// The publisher never writes zero when it ends: a restarting kubelet would fail the pods that hold devices. It creates no
// Node, and does not poll. It removes a resource for longer than that second only after an operator's forget command
// (Retired): once, and a writer that restores the resource owns it.
package nodestatus
