// Package pods follows the pods that are bound to this node and turns each into a device.PodDemand: its containers' requests.
//
// Its Sink receives one consistent sequence. A pod is bound before it is dropped, and a dropped pod returns only with a full
// list that contains it. A terminating pod still counts: its containers may run until its phase is terminal or it is gone
// from the API. Deletes that happen while the API server is away appear in the next full list.
//
// # The order of events
//
// The watch delivers pods one by one, and each full list with Replace. Fetch reads one pod out of turn, when the runtime is
// ahead of the watch. Both write to the same store under one lock, which is held during calls to the Sink, so the Sink
// receives events in the order of the store's decisions. These are the races between the two, with the resourceVersions
// that Kubernetes lets clients compare as integers:
//
//   - The watch delivers an older state of a pod than Fetch has bound. The store passes it on: a pod's requests do not
//     change while it lives, and the newer state follows.
//   - A full list is older than a pod that Fetch has bound, and lacks it. The pod stays: the watch continues from the
//     list's version, and will deliver the pod, or its end.
//   - A pod ends between Fetch's answer and its binding. The watch has then passed the version that Fetch has read, and the
//     store does not have the pod. That means that the pod has ended, and Fetch binds nothing. The same rule covers a
//     pod that ended while the watch was away and is missing from the next list.
//   - A backup of the API server is restored, and versions go back. The next full list is believed as it is.
//
// # Limits
//
// The package does not serve static pods that list their requests in an annotation: the runtime reports these, and this
// package only counts the requests of their mirror pods. Other static pods are known by their mirror pods, under the UID
// that the runtime uses. Mirror pods can be forged. So the UID in one counts only if it is a hash as kubelets generate it,
// which no pod of the API server has. Of several mirror pods with one UID only the first counts, or the oldest in a full list.
//
// The package keeps the requests of a pod, not the pod, and does not know whether devices have been assigned.
package pods
