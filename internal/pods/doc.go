// Package pods follows the pods that are bound to this node and turns each into a device.PodDemand. It also sends events on pods
// and evicts them.
//
// Its Sink gets a consistent order. A pod is bound before it is dropped, and a dropped pod is not bound again, except by a full
// list that contains it, or as the mirror pod of a static pod that runs again. A pod that is being deleted still counts, as one that is
// leaving, until its phase is terminal or it is gone from the API. Pods that were deleted while the API server was away are missing from
// the next full list.
//
// # The order of events
//
// The watch brings pods one after the other, each full list with Replace. Fetch brings one pod out of turn, when the
// runtime is ahead of the watch. Both write to the same store under one lock, which is held while the Sink is
// called, so that the Sink gets calls in the store's order. These are the races
// between the two, with the resourceVersions that Kubernetes lets clients compare as integers:
//
//   - The watch shows an older state of a pod than Fetch has bound. The state is passed on: a pod's requests do not
//     change while it lives, and the newer state follows.
//   - A full list is older than a pod that Fetch has bound, and lacks it. The pod survives: the watch goes on from
//     the list's version, and will bring the pod, or its end.
//   - A pod ends between Fetch's answer and its binding. The watch has then passed the version that Fetch has read
//     without the store holding the pod; that can only be because it is over, and Fetch binds nothing. The same rule
//     covers a pod that ended while the watch was away and is not in the list that followed.
//   - A static pod runs again, and its mirror pod shows the terminal phase of the last run. The watch may have passed that version; the
//     store then holds the mirror pod, unless it has been deleted since, and Fetch binds it.
//   - A backup of the API server is restored, and versions go back. The next full list is believed as it is, also if it
//     lacks a pod that Fetch has bound in a newer version.
//
// # What it does not do
//
// Static pods with the annotation devmgrd.io/resources come from the runtime; this package only counts the requests of their
// mirror pods. It takes other static pods from their mirror pods, under the UID that the runtime uses. Mirror pods can be forged: the UID that one
// names counts only if it is a hash as kubelets make them, which no pod of the API server has, and once the runtime shows the static pod, by UID, namespace
// and name, or where the static pod had devices before devmgrd's start.
//
// It keeps no Pod objects, only demands and a few facts about each pod, within limits (limits.go), and does not know the result of a demand.
package pods
