// Package nodestatus publishes how many devices the node has, where the scheduler looks: in the capacity and
// allocatable of our own Node object.
//
// It owns those numbers, for the resources that its View names and for no other. It promises that the Node shows within
// about a second what the stabilizers make of the View's numbers, also after another writer's change, and that it writes
// only when they differ.
//
// A rise of the View's number is shown at once. A fall is shown when it has lasted for the stabilization window of 5 s,
// and two falls of one resource are at least 10 s apart. A number that wavers falls to the highest of the window. A fall
// that a rise takes back lengthens the window to more than the fall has lasted, up to 3 min, until the resource has not
// risen for 10 min. So a device that flaps, or a plugin whose first list is empty, leaves the Node alone. What the Node
// shows too much meanwhile costs a pod that is bound for it a wait. The window begins at the start of devmgrd, if the Node
// shows more than the View wants then. Only what the View wants is stabilized: another writer's number is replaced at once.
//
// Until the View has counted every pod that is bound to the node its numbers may be too low, and a kubelet that starts
// with a number below what pods ask for fails those pods. So no number is lowered before: the larger of the View's and
// the Node's counts.
//
// Capacity and allocatable are always the same number, and change in one patch. A kubelet beside us sets allocatable
// to capacity for every resource it does not manage itself, and deletes an allocatable that has no capacity: with
// two different numbers, or two patches, it would find something to correct. The kubelet patches only what it
// believes to change, so an equal pair stays as it is for ever.
//
// A number is not lowered in one step. It is taken off the Node for a second, and then the lower one is shown. The
// scheduler may have bound a pod by the old number a moment ago, and a kubelet that finds the lower one fails that pod for
// good (OutOf...). A resource that the Node does not show it does not check, while the scheduler has nothing to give. What
// is shown afterwards counts the pods that have come meanwhile. In the end that second is cut short.
//
// # The order of events
//
// A watch on our own Node and the View both say that something has changed. Either way the publisher compares what
// is with what should be, writes what differs, takes the answer for the newest state, and compares again. Between two
// rounds it remembers the newest state of the Node, what it has made of it, what it has taken off it, a stabilizer for
// each resource, and how often another writer has changed it: that is counted when the Node is seen to show something
// other than what the last patch has made of it, be it more, less or nothing. What the watch brings may be older than the answer
// to our own patch; it is then left aside, else we would patch once more for each event on its way. A full list is
// always believed: the worst that a stale one costs is a patch that changes nothing.
//
// # What it does not do
//
// It never writes zero because it ends: a restarting kubelet would fail the pods that hold devices. It creates no Node, and
// does not poll. A resource is removed for longer than that second only when somebody has had it forgotten (Retired): then
// once, and whoever puts it back has it.
package nodestatus
