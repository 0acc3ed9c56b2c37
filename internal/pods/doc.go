// Package pods knows what containers ask for: it follows the pods that are bound to this node and turns each into a
// device.PodDemand.
//
// It promises its Sink one consistent story. A pod is bound before it is dropped, and once dropped it does not come
// back, but for a full list that holds it again. A pod that is terminating still counts: its containers may run on
// until its phase is terminal or it is gone from the API. Deletes that happen while the API server is away show in
// the next full list.
//
// # The order of events
//
// The watch brings pods one after the other, each full list with Replace. Fetch brings one pod out of turn, when the
// runtime is ahead of the watch. Both write to the same store under one lock, which is held while the Sink is
// called, so that the Sink hears of things in the order in which the store decided on them. These are the races
// between the two, with the resourceVersions that Kubernetes lets clients compare as integers:
//
//   - The watch shows an older state of a pod than Fetch has bound. It is passed on: what a pod asks for does not
//     change while it lives, and the newer state follows.
//   - A full list is older than a pod that Fetch has bound, and lacks it. The pod survives: the watch goes on from
//     the list's version, and will bring the pod, or its end.
//   - A pod ends between Fetch's answer and its binding. The watch has then passed the version that Fetch has read
//     without the store holding the pod; that can only be because it is over, and Fetch binds nothing. The same rule
//     covers a pod that ended while the watch was away and is not in the list that followed.
//   - A backup of the API server is restored, and versions go back. The next full list is believed as it is.
//
// # What it does not do
//
// It does not serve static pods that say in an annotation what they ask for: of those the runtime tells, and here they are
// only counted, by what their mirror pods ask for. Other static pods
// are known by their mirror pods, under the UID by which the runtime knows them. Mirror pods can be forged: the UID that one
// names counts only if it is a hash as kubelets make them, which no pod of the API server has, and of several that name the
// same only the first counts, or the oldest in a full list.
//
// It keeps no pod, only what was asked for, and does not know what has become of a demand.
package pods
