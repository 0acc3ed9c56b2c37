// Package checkpoint reads and writes the file in which a kubelet's device manager keeps its assignments
// (kubelet_internal_checkpoint), and converts between that file and devmgrd's records.
//
//	Decode, File.Encode   the file's bytes
//	Entry                 the devices of one resource that one container has, with the plugin's answer
//	FromState             devmgrd's records, as a kubelet would have written them
//	Adopt                 a kubelet's file, as records of devmgrd: migration
//	Mirror                such a file, kept up to date for programs that read the kubelet's
//	Mirrors               one in the common plugin directory, and one in each plugin pod's own
//
// # The format
//
//	{"Data": {
//	    "PodDeviceEntries": [{"PodUID", "ContainerName", "ResourceName",
//	        "DeviceIDs": {NUMA node, -1 for none: [IDs]},   a device near two nodes stands under both
//	        "AllocResp": base64 of a ContainerAllocateResponse}],
//	    "RegisteredDevices": {resource: [IDs that were healthy]}},
//	 "Checksum": n}
//
// The checksum is the FNV-1a hash, 32 bits, of a dump of the Go value under "Data", not of any bytes. The dump holds the
// names of the types and of their package. So checkpointData, PodDevicesEntry and DevicesPerNUMA are called as they are in
// the kubelet, and so is this package. The format has been so since Kubernetes 1.20, and has no version.
//
// # Promises
//
//   - A file with a wrong checksum is refused, as a kubelet refuses it.
//   - An invalid entry does not hide others: Adopt reports all conflicts together.
//   - A kubelet accepts what Encode writes, and Decode returns it. Equal files have equal bytes.
//   - Decoding and conversion are pure: no file, no clock, no log. Read and Write access a file, and only the Mirror runs.
//
// # The mirror
//
// Some agents watch the kubelet's file, or read it if they find no PodResources socket. The Mirror writes one for them: the
// devices of every pod that has any, active or not, and the healthy devices of each resource that a plugin serves or has just
// served. It writes when the bytes change, at most once a second, and rests for twenty times as long as it has worked. Plugins may
// exchange the file at any time: the Mirror compares the file through a descriptor, within the expected length, and replaces
// anything else at its name. The Mirror never waits for a disk: after a power cut the file may be empty or old, and the next
// start writes it again.
//
// # Migration
//
// Adopt makes each entry a part of its pod's record, with the demand from the API server. It takes entries of pods that are gone, too: they are released like
// any other, since a container of theirs may still run. An assignment has the time of the import (Imported): containers that were created earlier have no
// assignment annotation, and do not count as started without their devices.
//
// # What it does not do
//
// It does not check whether a kubelet runs: its caller does.
package checkpoint
