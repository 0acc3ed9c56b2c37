// Package healthcommand has the operator's command examine devices that no pod has: a second opinion besides the plugin's.
//
// For each resource with a health.command, one device after the other is examined once per health.interval, by a transient unit of
// systemd. Its environment has DEVMGRD_RESOURCE and DEVMGRD_DEVICE, the device's ID.
//
//	exit code 0          the device is healthy
//	exit code 1          it is unhealthy: the allocator suspends it until a later run ends with 0, and counts it as a fall
//	any other, a signal, or health.timeout has passed: not known; what the last run has found stands
//
// Four commands run at once, of all resources together, and plugins take turns: the many resources of one plugin do not delay those of another.
//
// A run that an earlier process of devmgrd has left is ended first. So a command that is missing, or that cannot reach its daemon, takes
// no device out of service. A device that a pod gets during a run is not judged by it.
package healthcommand
