// Package reclaim proves that the devices of an ended pod are free before another pod gets them.
//
// The allocator asks when the pod is quiet (allocator/departure.go). More may still be missing, and the settings say for which resources it counts:
//
//	release.networkTimeout    the pod's network namespaces are gone: its network plugin may change a device until then (networks.go)
//	release.check: openers    no process outside the pod has one of the device nodes open or mapped
//	release.command           a vendor's command has succeeded, such as a reset of the device
//
// Processes outside the pod can hold a device: privileged ones, debuggers, daemons that a container passed a descriptor to. They are
// found by device numbers (package openers), in a process of its own with the rights for that. One search answers for all
// pods that wait at its beginning. Searches take at most 5 % of one core on average: 3 s of CPU time at once after a minute's pause, and then
// each one waits for its share; what pods and processes with too many files take of a search adds 10 s to the wait at most. If a process holds a device, it is watched, and its end starts a search; else the next follows after 1 s,
// doubling up to a minute. A process that the search could not see into counts as a holder of each device that it may have opened: devices of pods in its own
// namespace, and all devices if it is outside of pods, or its pod has anything of the host's.
//
// Nodes that several devices share prove nothing, such as /dev/nvidiactl. Known ones are in a table (nodes.go), the setting
// release.sharedNodes adds more, and a node that two containers have at the moment, with different devices, is shared. Where no node is left,
// nothing can be looked for: the log says so, once for each resource. Monitors and daemons that keep
// each device open are left out by release.ignore.
//
// The command runs after the search, as a transient unit of systemd, one at a time for each resource:
//
//	exit code 0          the devices are free
//	exit code 75         not yet; it is run again after 1 s, doubling up to a minute
//	any other, a signal, or release.timeout has passed: the devices stay out of service until "devmgrd uncordon"
//
// Its environment has DEVMGRD_RESOURCE, DEVMGRD_DEVICES (IDs), DEVMGRD_NODES (paths), DEVMGRD_POD (namespace/name) and
// DEVMGRD_POD_UID; lists are separated by spaces, and one that is too long for a variable comes in several runs (command.go). Four commands run at once, with
// turns for the plugins. A command runs until systemd says that its unit has ended, also after Forget, which has it
// stopped. A restart of devmgrd repeats a command whose success had not been recorded: what the earlier process has left counts as running,
// is stopped, and ends before a command for the same resource begins.
//
// Nothing is kept on disk here: the devices stay assigned to the ended pod until they are proved free, so a restart of devmgrd begins the
// proof again. The allocator keeps the failure of a command with the pod's record.
package reclaim
