// Package failures follows the devices of one resource that fail while pods have them. It is pure: callers hand in the time
// and what they know of the devices and pods.
//
// A failure begins when a device in use is unhealthy or unlisted, and ends when the device recovers or its pod releases it:
//
//	begun       the device counts as failed at once if it is listed, and otherwise once it
//	            has stayed unlisted for 5 s: many plugins list nothing for a moment at first
//	counted     the device has failed once more within the hour
//	lasting     the failure has lasted for 10 s. It is due for a report to the pod's owner, who may end the pod, once an hour
//	            for each device, so that an intermittent failure does not end pod after pod
//
// A Log looks only at devices that have changed, or at which something is due: a resource may have very many devices that stay failed.
//
// While the plugin is away the health of its devices is unknown, and no failure begins, ends or becomes lasting.
package failures
