// Package podstatus writes two conditions into the status of each pod that requests devices:
//
//	devmgrd.io/DevicesAssigned   False with the reason and message of the wait; True with the number of devices of each resource
//	devmgrd.io/DevicesHealthy    False while a device of the pod is unhealthy or unlisted, or its plugin is lost; else True. A
//	                             pod without devices has none
//
// It owns these two conditions of this node's pods, and no other field. What the pod's object shows is the truth that it compares with: it
// writes only differences, so nothing at rest and nothing after a restart of devmgrd, and another writer's change is put right.
//
//	judge.go       what one pod should show, from the allocator's facts and what it shows: pure
//	publisher.go   which pod is next, and the patch
//	metrics.go     patches by their results
//
// # Conditions and events
//
// Both come from one fact of the allocator: PodStatus.Told is the wait of the last event WaitingForDevices, PodStatus.Fault is a failure that
// DeviceFailed has reported. A wait without an event, such as for a plugin's answer, changes no condition.
//
// # When a condition changes
//
//	DevicesAssigned True      at once
//	DevicesAssigned False     when the wait has lasted for 5 s, and a new reason when it has
//	DevicesHealthy False      at once
//	DevicesHealthy True       at once for new devices; otherwise after 30 s without a failure
//
// A plugin that is away has unknown devices: what the pod shows stays, until the plugin is lost after its grace period. A devmgrd that has just
// started knows nothing of before: it waits the 30 s before it changes a False to True, and so for a pod that it has not seen waiting.
//
// # The patch
//
// A strategic merge patch names conditions by their types, and has the pod's UID as a precondition: a new pod of the same name is not
// written to. The API server merges it with the status of that moment, so a kubelet that writes at the same time loses nothing. The kubelet's own
// patches keep conditions that are not its own, also those of mirror pods. Until the watch has delivered the result of a patch, the pod is
// not compared. Pods that have ended or are being deleted are not written to.
//
// Writes are limited for each pod and in sum. Of the pods that differ, the one that was written to least recently is next, so pods that change
// all the time do not delay others. A refusal is retried after pauses of up to a minute, and Limits has the remedy.
package podstatus
