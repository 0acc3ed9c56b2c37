// Package checkpoint reads and writes the file in which a kubelet's device manager records assignments
// (kubelet_internal_checkpoint), and converts between that file and devmgrd's state file.
//
//	Decode, File.Encode   between the file's bytes and a File
//	Entry                 one container's devices of one resource, with the plugin's answer
//	FromState             devmgrd's state file as a kubelet's file
//	Adopt                 a kubelet's file as records of devmgrd's state file
//	Mirror                such a file, kept up to date for readers of the kubelet's
//	Mirrors               one in the common plugin directory, and one in each plugin pod's own
//
// # The format
//
//	{"Data": {
//	    "PodDeviceEntries": [{"PodUID", "ContainerName", "ResourceName",
//	        "DeviceIDs": {NUMA node, -1 for none: [IDs]},   a device near two nodes is under both
//	        "AllocResp": base64 of a ContainerAllocateResponse}],
//	    "RegisteredDevices": {resource: [healthy IDs]}},
//	 "Checksum": n}
//
// The checksum is the FNV-1a hash, 32 bits, of a dump of the Go value under "Data", not of any bytes. The dump holds the
// names of the types and of their package. So checkpointData, PodDevicesEntry and DevicesPerNUMA have the same names as in
// the kubelet, and so has this package. The format is unchanged since Kubernetes 1.20, and has no version.
//
// # Promises
//
//   - A file with a wrong checksum is refused: a kubelet does not believe it either.
//   - An invalid entry does not affect the others: it is reported with all other conflicts.
//   - A kubelet accepts the result of Encode, and Decode reverses it. Equal files have equal bytes.
//   - The conversion is pure: no file, no clock, no log. Only Read and Write touch a file, and only the Mirror runs.
//
// # The mirror
//
// Agents that report which pod has which device watch the kubelet's file, or read it if there is no PodResources socket.
// The Mirror writes one for them: the devices of every pod that has any, active or not, and the healthy devices of each
// resource that a plugin serves, or served within the grace period. It writes when the bytes change, once a second at most,
// and rests for twenty times as long as it has worked. Plugins may exchange the file at any time: the Mirror compares it through
// a descriptor, within its expected length, and replaces anything else at its name. The Mirror never waits for a disk: after a
// power cut the file may be empty or old, and the next start repairs it.
//
// # Limits
//
// The package does not know whether a kubelet runs: its callers find out.
package checkpoint
